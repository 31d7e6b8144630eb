// The parts that both forms of the regression share: linear regression with the coefficients integrated out, for one
// chain.
//
// model/regression.py has the formulas. Products of features, Cholesky factors and energies are in double.
// With the products in float, a fifth fewer trajectories were accepted. Slopes are in the type of the position, as all
// gradients are.
#ifndef RAYFBNN_REGRESSION_HPP
#define RAYFBNN_REGRESSION_HPP

#include <string.h>

#include "memory.hpp"
#include "rows.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct RegressionWorker {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;
    static constexpr int WD = Lane<PackDouble>::width;
    static constexpr int RATIO = W / WD;
    typedef S Half __attribute__((vector_size(WD * sizeof(S))));  // as many numbers as a pack of doubles holds

    const rayfbnn::Regression& given;
    const int n_features;
    const long stride, stride_double;
    const double logs_in_energy;  // factor of -log|S| of a system in the energy
    Buffer<L> rows;              // (n_features and the rows that a form adds, stride)
    Buffer<PackDouble> doubles;  // the same rows in double, stride_double apart
    Buffer<L> slope_row;         // (stride,)
    Buffer<double> precisions;      // (n_systems, n_features): the prior's, times the factors exp(x)
    Buffer<double> moved_gradient;  // (n_moved,)
    int chain = 0;
    bool is_new_chain = true;  // whether features that stay the same for the whole chain have yet to be set

    RegressionWorker(const rayfbnn::Regression& given, long n_packs, long n_rows, double logs_in_energy)
        : given(given),
          n_features(given.n_features),
          stride(n_packs),
          stride_double(n_packs * RATIO),
          logs_in_energy(logs_in_energy),
          rows(n_rows * stride),
          doubles(n_rows * stride_double),
          slope_row(stride),
          precisions(long(given.n_systems) * n_features),
          moved_gradient(given.n_moved) {}
    virtual ~RegressionWorker() = default;

    // --- the functions of each form ---

    // Sets what depends on the chain's targets and noise alone, and does not change along its trajectory.
    virtual void set_targets() = 0;
    virtual void begin_slopes() {}
    // Solves for one system. Returns its energy if it is wanted, without the terms that `logs_in_energy` counts and
    // without terms that are constant along a trajectory.
    virtual double solve_system(int system, bool wants_energy, bool wants_slopes) = 0;
    // The derivative by the log of a feature's prior precision, summed over systems. Call it after all systems.
    virtual double prior_slope(int feature) const = 0;
    // Writes the slopes of features first .. first + n - 1 to the rows of `to`. Call it after all systems.
    virtual void slopes(int first, int n, L* to) const = 0;

    // --- the numbers of the chain ---

    int n_targets() const { return given.n_systems * given.n_each; }
    const double* noise(int system) const {
        return given.noise + (long(chain) * given.n_systems + system) * (given.is_uniform ? 1 : given.n_cases);
    }
    const double* prior(int system) const { return precisions + long(system) * n_features; }
    const double* targets(int target) const {
        return given.targets + chain * given.targets_step + long(target) * given.n_cases;
    }

    void begin_chain(int number) {
        chain = number, is_new_chain = true;
        set_targets();
    }

    // Sets feature k to a row of packs. Places behind the last case may hold anything.
    void set_feature(int k, const L* values) {
        L* row = rows + k * stride;
        memcpy(static_cast<void*>(row), values, stride * sizeof(L));
        finish_row(k);
    }
    void set_ones(int k) {
        for (long p = 0; p < stride; ++p) rows[k * stride + p] = splat<L>(1);
        finish_row(k);
    }
    // Puts zeros behind the last case, and copies the row to double.
    void finish_row(int k) {
        S* row = reinterpret_cast<S*>(rows + k * stride);
        for (long c = given.n_cases; c < stride * W; ++c) row[c] = 0;
        const Half* from = reinterpret_cast<const Half*>(row);
        PackDouble* to = doubles + k * stride_double;
        for (long p = 0; p < stride_double; ++p) to[p] = __builtin_convertvector(from[p], PackDouble);
    }

    // --- along the trajectory ---

    // Solves for the features that were set and for the coordinates `moved`, which are logs of precisions. Returns the
    // energy with the prior's energy of `moved`, but without terms that are constant along a trajectory. Energy and
    // slopes are each computed only if they are wanted.
    double evaluate(const S* moved, bool wants_energy, bool wants_slopes) {
        double energy = set_precisions(moved);
        if (wants_slopes) begin_slopes();
        for (int s = 0; s < given.n_systems; ++s) energy += solve_system(s, wants_energy, wants_slopes);
        if (wants_slopes)
            for (int k = 0; k < given.n_moved; ++k)
                for (int f = given.moved[k].first; f < given.moved[k].stop; ++f) moved_gradient[k] += prior_slope(f);
        return energy;
    }

    // Sets the prior's precisions S and the part of moved_gradient that does not come from the targets. Returns the sum
    // over the coordinates x of half (exp(x)/mean - x), minus logs_in_energy times log|S| as far as it depends on x.
    double set_precisions(const S* moved) {
        const long size = long(given.n_systems) * n_features;
        memcpy(precisions, given.prior + long(chain) * size, size * sizeof(double));
        double energy = 0;
        for (int k = 0; k < given.n_moved; ++k) {
            const rayfbnn::Moved& each = given.moved[k];
            const double x = double(moved[k]), within = bounded(x);
            const double tau = RAYFBNN_EXP(within), ratio = RAYFBNN_EXP(x) / each.mean;
            energy +=
                log_gamma_term(each.half, ratio, x) -
                logs_in_energy * given.n_systems * (each.stop - each.first) * within;
            moved_gradient[k] = log_gamma_slope(each.half, ratio);
            for (int s = 0; s < given.n_systems; ++s)
                for (int f = each.first; f < each.stop; ++f) precisions[long(s) * n_features + f] *= tau;
        }
        return energy;
    }

    // The sum of one feature's slopes over all cases.
    S sum_of_slopes(int feature) const {
        slopes(feature, 1, slope_row);
        L total = splat<L>(0);
        for (long p = 0; p < stride; ++p) total += slope_row[p];
        return sum_of_places(total);
    }
    static S sum_of_places(L total) {
        S places[W], sum = 0;
        memcpy(places, &total, sizeof total);
        for (int k = 0; k < W; ++k) sum += places[k];
        return sum;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
