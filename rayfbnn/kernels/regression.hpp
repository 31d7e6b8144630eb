// Linear regression with the coefficients integrated out, for one chain: the energy of the features and its
// slopes, as model/regression.py has them in its primal form.
//
// Phi T Phi', its factors and the energy are in double: with the first in float a fifth fewer trajectories are
// accepted. The slopes, A^-1 Phi T - m (T r)', are in the kernel's type, as all gradients are.
#ifndef RAYFBNN_REGRESSION_HPP
#define RAYFBNN_REGRESSION_HPP

#include <stdlib.h>
#include <string.h>

#include "memory.hpp"
#include "network.hpp"
#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

constexpr double MOST_LOG_PRECISION = 600;  // MAX_LOG_PRECISION of model/prior.py

template <class S>
struct RegressionWorker {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;
    static constexpr int WD = Lane<PackDouble>::width;
    static constexpr int RATIO = W / WD;
    typedef S Half __attribute__((vector_size(WD * sizeof(S))));  // as many as a pack of doubles
#if defined(__AVX512F__) || defined(__aarch64__)
    static constexpr int COLUMNS = 4;  // of a register tile of products, four rows high
#else
    static constexpr int COLUMNS = 3;
#endif

    const rayfbnn::Regression& given;
    const int n_features, n_rows;  // rows: of the features, then of targets that are worked on together
    const int padded;              // n_features as whole packs of doubles, in doubles
    const long stride, stride_double;
    L* rows;             // (n_features + all targets, stride): features, then residuals of every target
    PackDouble* doubles;  // (n_features + all targets, stride_double): features and targets
    PackDouble* scaled;   // (n_features, stride_double): features times noise, where cases differ
    double* gram;        // (n_rows, n_features), the lower triangle
    double *factor, *half, *inverse;  // (n_features, padded): U with A = U'U, U'^-1, A^-1
    double* means;       // (n_systems, n_each, n_features)
    double* right;       // (n_features,)
    S* weights;          // what features and residuals are multiplied by for the slopes, see `combine`
    S* negative;         // (n_features,): -m of a target
    L* case_noise;       // (n_systems, stride) in the kernel's type, where cases differ
    double* precisions;  // (n_systems, n_features): the prior's, with what moves
    double* prior_slopes;    // (n_features,): derivatives by their logs, summed over systems
    double* moved_gradient;  // (n_moved,)
    int chain = 0;
    bool is_new_chain = true;  // whether features that stay the same are still to be set

    RegressionWorker(const rayfbnn::Regression& given, long n_packs)
        : given(given),
          n_features(given.n_features),
          n_rows(given.n_features + (given.is_uniform ? given.n_systems : 1) * given.n_each),
          padded((given.n_features + WD - 1) / WD * WD),
          stride(n_packs),
          stride_double(n_packs * RATIO) {
        const long all = n_features + n_targets();
        rows = allocate<L>(all * stride), doubles = allocate<PackDouble>(all * stride_double);
        scaled = allocate<PackDouble>(n_features * stride_double);
        gram = allocate<double>(long(n_rows) * n_features);
        factor = allocate<double>(long(n_features) * padded), half = allocate<double>(long(n_features) * padded);
        inverse = allocate<double>(long(n_features) * padded);
        means = allocate<double>(long(n_targets()) * n_features), right = allocate<double>(n_features);
        weights = allocate<S>(n_weights()), negative = allocate<S>(n_features);
        case_noise = allocate<L>(given.is_uniform ? 0 : given.n_systems * stride);
        precisions = allocate<double>(long(given.n_systems) * n_features);
        prior_slopes = allocate<double>(n_features), moved_gradient = allocate<double>(given.n_moved);
    }
    ~RegressionWorker() {
        free(rows), free(doubles), free(scaled), free(gram), free(factor), free(half), free(inverse);
        free(means), free(right), free(weights), free(negative), free(case_noise);
        free(precisions), free(prior_slopes), free(moved_gradient);
    }
    RegressionWorker(const RegressionWorker&) = delete;
    RegressionWorker& operator=(const RegressionWorker&) = delete;

    int n_targets() const { return given.n_systems * given.n_each; }
    const double* noise(int system) const {
        return given.noise + (long(chain) * given.n_systems + system) * (given.is_uniform ? 1 : given.n_cases);
    }
    const double* prior(int system) const { return precisions + long(system) * n_features; }
    const double* targets(int target) const {
        return given.targets + chain * given.targets_step + long(target) * given.n_cases;
    }

    // What of a chain does not change along its trajectory. Places behind the last case stay zero.
    void begin_chain(int number) {
        chain = number, is_new_chain = true;
        for (int j = 0; j < n_targets(); ++j) {
            double* row = reinterpret_cast<double*>(doubles + (n_features + j) * stride_double);
            memset(static_cast<void*>(row), 0, stride_double * sizeof(PackDouble));
            memcpy(row, targets(j), given.n_cases * sizeof(double));
        }
        if (given.is_uniform) return;
        memset(static_cast<void*>(case_noise), 0, given.n_systems * stride * sizeof(L));
        for (int s = 0; s < given.n_systems; ++s) {
            S* row = reinterpret_cast<S*>(case_noise + s * stride);
            for (int c = 0; c < given.n_cases; ++c) row[c] = S(noise(s)[c]);
        }
    }

    bool has_features_of(int layer) const {
        for (int k = 0; k < n_features; ++k)
            if (given.features[k].layer == layer && given.features[k].row >= 0) return true;
        return false;
    }

    // Row number k of the features, in packs whose last may be filled up with anything.
    void set_feature(int k, const L* values) {
        L* row = rows + k * stride;
        memcpy(static_cast<void*>(row), values, stride * sizeof(L));
        finish_row(k);
    }
    void set_ones(int k) {
        for (long p = 0; p < stride; ++p) rows[k * stride + p] = splat<L>(1);
        finish_row(k);
    }
    // Zeros where there are no cases, and the same in double.
    void finish_row(int k) {
        S* row = reinterpret_cast<S*>(rows + k * stride);
        for (long c = given.n_cases; c < stride * W; ++c) row[c] = 0;
        const Half* from = reinterpret_cast<const Half*>(row);
        PackDouble* to = doubles + k * stride_double;
        for (long p = 0; p < stride_double; ++p) to[p] = __builtin_convertvector(from[p], PackDouble);
    }

    // --- products ---

    // gram[i][j] of rows first .. first + n - 1 and columns j <= i that are features; `into` is the first's place.
    void triangle(const PackDouble* from, int into, int n, const PackDouble* columns) {
        int i = 0;
        for (; i + 4 <= n; i += 4) row_block<4>(from + i * stride_double, into + i, columns);
        if (n - i == 3) row_block<3>(from + i * stride_double, into + i, columns);
        if (n - i == 2) row_block<2>(from + i * stride_double, into + i, columns);
        if (n - i == 1) row_block<1>(from + i * stride_double, into + i, columns);
    }
    template <int ROWS>
    void row_block(const PackDouble* from, int i, const PackDouble* columns) {
        const int end = i + ROWS < n_features ? i + ROWS : n_features;
        int j = 0;
        for (; j + COLUMNS <= end; j += COLUMNS) tile<ROWS, COLUMNS>(from, i, j, columns);
        if (end - j == 3) tile<ROWS, 3>(from, i, j, columns);
        if (end - j == 2) tile<ROWS, 2>(from, i, j, columns);
        if (end - j == 1) tile<ROWS, 1>(from, i, j, columns);
    }
    template <int ROWS, int UNITS>
    void tile(const PackDouble* from, int i, int j, const PackDouble* columns) {
        constexpr int n = ROWS * UNITS, n_padded = (n + WD - 1) / WD * WD;
        PackDouble sums[n_padded] = {};  // before they are summed over places
        add_products<ROWS, UNITS, PackDouble>(
            sums, UNITS, int(stride_double), from, columns + j * stride_double, stride_double);
        double totals[n_padded];
        for (int k = 0; k < n_padded; k += WD) {
            const PackDouble total = sums_of<WD>(sums + k);
            memcpy(totals + k, &total, sizeof total);
        }
        for (int r = 0; r < ROWS; ++r)
            memcpy(gram + long(i + r) * n_features + j, totals + r * UNITS, UNITS * sizeof(double));
    }

    // Phi T Phi' and, in the rows behind it, (Phi T y)' of the targets: of all systems at once if T is alike for
    // all cases, without T then; of one system else.
    void products(int system) {
        if (given.is_uniform && system > 0) return;
        const PackDouble* columns = doubles;
        if (!given.is_uniform) {
            const double* t = noise(system);
            for (int k = 0; k < n_features; ++k) {
                const double* from = reinterpret_cast<const double*>(doubles + k * stride_double);
                double* to = reinterpret_cast<double*>(scaled + k * stride_double);
                for (int c = 0; c < given.n_cases; ++c) to[c] = t[c] * from[c];
                for (long c = given.n_cases; c < stride * W; ++c) to[c] = 0;
            }
            columns = scaled;
        }
        if (system == 0) {  // the targets' rows follow the features'
            triangle(doubles, 0, n_rows, columns);
        } else {
            triangle(doubles, 0, n_features, columns);
            triangle(doubles + (n_features + long(system) * given.n_each) * stride_double, n_features, given.n_each, columns);
        }
    }
    // (Phi T y)' of a target, T left out if it is alike for all cases.
    const double* right_side(int system, int each) const {
        return gram + long(n_features + (given.is_uniform ? system * given.n_each : 0) + each) * n_features;
    }

    // --- factors ---

    static void subtract(double* to, double factor, const double* from, int begin, int end) {
        for (int k = begin / WD; k < (end + WD - 1) / WD; ++k)
            reinterpret_cast<PackDouble*>(to)[k] -= splat<PackDouble>(factor) * reinterpret_cast<const PackDouble*>(from)[k];
    }

    // U and U'^-1 of a system, and log|A| if it is wanted; a matrix that is not positive definite makes NaN.
    double factorise(int system, bool wants_energy) {
        const double t = given.is_uniform ? noise(system)[0] : 1;
        const double* s = prior(system);
        for (int i = 0; i < n_features; ++i) {
            double* row = factor + long(i) * padded;
            for (int j = 0; j < padded; ++j) row[j] = 0;
            for (int j = i; j < n_features; ++j) row[j] = t * gram[long(j) * n_features + i];
            row[i] += s[i];
        }
        double log_determinant = 0;
        for (int k = 0; k < n_features; ++k) {
            double* row = factor + long(k) * padded;
            const double pivot = row[k] > 0 ? __builtin_sqrt(row[k]) : __builtin_nan("");
            if (wants_energy) log_determinant += 2 * RAYFBNN_LOG(pivot);
            const double scale = 1 / pivot;
            for (int j = k; j < n_features; ++j) row[j] *= scale;
            for (int i = k + 1; i < n_features; ++i) subtract(factor + long(i) * padded, row[i], row, i, n_features);
        }
        for (int i = 0; i < n_features; ++i) {
            double* row = half + long(i) * padded;
            for (int j = 0; j < padded; ++j) row[j] = 0;
            row[i] = 1;
            for (int k = 0; k < i; ++k)
                subtract(row, factor[long(k) * padded + i], half + long(k) * padded, 0, k + 1);
            const double scale = 1 / factor[long(i) * padded + i];
            for (int j = 0; j <= i; ++j) row[j] *= scale;
        }
        return log_determinant;
    }

    void invert() {
        memset(inverse, 0, long(n_features) * padded * sizeof(double));
        for (int k = 0; k < n_features; ++k)
            for (int i = 0; i <= k; ++i)
                subtract(inverse + long(i) * padded, -half[long(k) * padded + i], half + long(k) * padded, 0, k + 1);
    }

    // m of a system's targets: U^-1 (U'^-1 b)
    void solve(int system) {
        const double t = given.is_uniform ? noise(system)[0] : 1;
        for (int e = 0; e < given.n_each; ++e) {
            const double* b = right_side(system, e);
            double* m = means + long(system * given.n_each + e) * n_features;
            for (int i = 0; i < n_features; ++i) {
                double total = 0;
                for (int j = 0; j <= i; ++j) total += half[long(i) * padded + j] * b[j];
                right[i] = t * total;
                m[i] = 0;
            }
            for (int k = 0; k < n_features; ++k)
                for (int i = 0; i <= k; ++i) m[i] += half[long(k) * padded + i] * right[k];
        }
    }

    // r'Tr + m'Sm of a system's targets.
    double squares(int system) const {
        const double* t = noise(system);
        const double* s = prior(system);
        double total = 0;
        for (int e = 0; e < given.n_each; ++e) {
            const int target = system * given.n_each + e;
            const double* m = means + long(target) * n_features;
            const double* y = targets(target);
            for (int c = 0; c < given.n_cases; ++c) {
                double r = y[c];
                for (int k = 0; k < n_features; ++k)
                    r -= m[k] * reinterpret_cast<const double*>(doubles + k * stride_double)[c];
                total += (given.is_uniform ? t[0] : t[c]) * r * r;
            }
            for (int k = 0; k < n_features; ++k) total += s[k] * m[k] * m[k];
        }
        return total;
    }

    // Residuals of a system's targets, behind the features.
    void residuals(int system) {
        for (int e = 0; e < given.n_each; ++e) {
            const int target = system * given.n_each + e;
            const double* m = means + long(target) * n_features;
            for (int k = 0; k < n_features; ++k) negative[k] = S(-m[k]);
            L* row = rows + (n_features + target) * stride;
            const double* y = reinterpret_cast<const double*>(doubles + (n_features + target) * stride_double);
            S* places = reinterpret_cast<S*>(row);
            for (long c = 0; c < stride * W; ++c) places[c] = S(y[c]);
            long p = 0;
            for (; p + 5 <= stride; p += 5) add_combination<1, 5>(row + p, negative, 1, n_features, rows + p);
            for (; p < stride; ++p) add_combination<1, 1>(row + p, negative, 1, n_features, rows + p);
        }
    }

    // to[m][p] += sum over k < n of factors[k * row_step + m] * from[k][p]
    template <int UNITS, int CASES>
    void add_combination(L* to, const S* factors, long row_step, int n, const L* from) const {
        L tile[UNITS][CASES];
        for (int m = 0; m < UNITS; ++m)
            for (int p = 0; p < CASES; ++p) tile[m][p] = to[m * stride + p];
        multiply_add<UNITS, CASES, L>(tile, factors, row_step, 1, n, from, stride);
        for (int m = 0; m < UNITS; ++m)
            for (int p = 0; p < CASES; ++p) to[m * stride + p] = tile[m][p];
    }

    // What the slopes of a system's features are combined of: weights[k][f], k a feature or a residual.
    //
    // Of systems with the same noise in all cases they are added up, T and all, behind the features' part
    // those of every target; of others each system has its own block and T is left to `slopes`.
    void combine(int system) {
        invert();
        const double t = given.is_uniform ? noise(system)[0] : 1;
        S* block = given.is_uniform ? weights : weights + long(system) * (n_features + given.n_each) * n_features;
        S* by_residual = block + long(n_features) * n_features;
        if (given.is_uniform) by_residual += long(system) * given.n_each * n_features;
        const double factor = t * given.n_each;
        for (int k = 0; k < n_features; ++k)
            for (int f = 0; f < n_features; ++f)
                block[long(k) * n_features + f] += S(factor * inverse[long(k) * padded + f]);
        for (int e = 0; e < given.n_each; ++e)
            for (int f = 0; f < n_features; ++f)
                by_residual[long(e) * n_features + f] =
                    S(-t * means[long(system * given.n_each + e) * n_features + f]);
        const double* s = prior(system);
        for (int f = 0; f < n_features; ++f) {  // ( S (diag(A^-1) + m**2) - 1 ) / 2, summed over targets
            double second_moments = given.n_each * inverse[long(f) * padded + f];
            for (int e = 0; e < given.n_each; ++e) {
                const double m = means[long(system * given.n_each + e) * n_features + f];
                second_moments += m * m;
            }
            prior_slopes[f] += 0.5 * (s[f] * second_moments - given.n_each);
        }
    }

    // Solves for the features that were set and the logs of precisions that move. Returns the energy, with the
    // prior's of what moves, but without what is constant along a trajectory; without gradient it is the energy
    // alone that is made.
    double evaluate(const S* moved, bool wants_energy, bool wants_slopes) {
        double energy = set_precisions(moved);
        if (wants_slopes) {
            memset(static_cast<void*>(weights), 0, n_weights() * sizeof(S));
            memset(static_cast<void*>(prior_slopes), 0, n_features * sizeof(double));
        }
        for (int s = 0; s < given.n_systems; ++s) {
            products(s);
            const double log_determinant = factorise(s, wants_energy);
            solve(s);
            if (wants_energy) energy += 0.5 * (given.n_each * log_determinant + squares(s));
            if (!wants_slopes) continue;
            residuals(s);
            combine(s);
        }
        if (wants_slopes)
            for (int k = 0; k < given.n_moved; ++k)
                for (int f = given.moved[k].first; f < given.moved[k].stop; ++f) moved_gradient[k] += prior_slopes[f];
        return energy;
    }

    // The prior's precisions S, and the part of moved_gradient that does not come from the targets. Returns
    // sum over moved x of half (exp(x)/mean - x), minus log|S| / 2 of all targets without what stays the same.
    double set_precisions(const S* moved) {
        const long size = long(given.n_systems) * n_features;
        memcpy(precisions, given.prior + long(chain) * size, size * sizeof(double));
        double energy = 0;
        for (int k = 0; k < given.n_moved; ++k) {
            const rayfbnn::Moved& each = given.moved[k];
            const double x = double(moved[k]);
            const double within = x < -MOST_LOG_PRECISION ? -MOST_LOG_PRECISION : x > MOST_LOG_PRECISION ? MOST_LOG_PRECISION : x;
            const double tau = RAYFBNN_EXP(within), ratio = RAYFBNN_EXP(x) / each.mean;
            energy += each.half * (ratio - x) - 0.5 * n_targets() * (each.stop - each.first) * within;
            moved_gradient[k] = each.half * (ratio - 1);
            for (int s = 0; s < given.n_systems; ++s)
                for (int f = each.first; f < each.stop; ++f) precisions[long(s) * n_features + f] *= tau;
        }
        return energy;
    }

    // Slopes of features first .. first + n - 1 to rows of `to`; after `evaluate`.
    void slopes(int first, int n, L* to) const {
        int k = 0;
        for (; k + 2 <= n; k += 2) slope_rows<2>(first + k, to + k * stride);
        if (k < n) slope_rows<1>(first + k, to + k * stride);
    }
    // Of one feature, over all cases.
    S sum_of_slopes(int feature) const {
        L total = splat<L>(0);
        for (long p = 0; p < stride; ++p) {
            L slope;
            slope_tile<1, 1>(feature, p, &slope);
            total += slope;
        }
        S places[W], sum = 0;
        memcpy(places, &total, sizeof total);
        for (int k = 0; k < W; ++k) sum += places[k];
        return sum;
    }
    template <int UNITS>
    void slope_rows(int feature, L* to) const {
        long p = 0;
        for (; p + 5 <= stride; p += 5) slope_tile<UNITS, 5>(feature, p, to + p);
        for (; p + 2 <= stride; p += 2) slope_tile<UNITS, 2>(feature, p, to + p);
        for (; p < stride; ++p) slope_tile<UNITS, 1>(feature, p, to + p);
    }
    template <int UNITS, int CASES>
    void slope_tile(int feature, long p, L* to) const {
        L tile[UNITS][CASES] = {};
        if (given.is_uniform) {
            multiply_add<UNITS, CASES, L>(
                tile, weights + feature, n_features, 1, n_features + n_targets(), rows + p, stride);
        } else {
            for (int s = 0; s < given.n_systems; ++s) {
                const S* block = weights + long(s) * (n_features + given.n_each) * n_features + feature;
                const L* residuals = rows + (n_features + long(s) * given.n_each) * stride + p;
                L part[UNITS][CASES] = {};
                multiply_add<UNITS, CASES, L>(part, block, n_features, 1, n_features, rows + p, stride);
                multiply_add<UNITS, CASES, L>(
                    part, block + long(n_features) * n_features, n_features, 1, given.n_each, residuals, stride);
                for (int m = 0; m < UNITS; ++m)
                    for (int c = 0; c < CASES; ++c) tile[m][c] += part[m][c] * case_noise[s * stride + p + c];
            }
        }
        for (int m = 0; m < UNITS; ++m)
            for (int c = 0; c < CASES; ++c) to[m * stride + c] = tile[m][c];
    }

    long n_weights() const {
        return given.is_uniform ? long(n_features + n_targets()) * n_features
                                : long(given.n_systems) * (n_features + given.n_each) * n_features;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
