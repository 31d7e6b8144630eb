// Steps of Bayes by Backprop, of one start after the other.
#ifndef RAYFBNN_VARIATIONAL_HPP
#define RAYFBNN_VARIATIONAL_HPP

#include <string.h>

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct VariationalStep {
    typedef Lane<PackDouble> D;

    const Job& job;
    const rayfbnn::Variational& fit;
    const long n;  // parameters, and the same up to whole packs
    const long n_padded;
    Trajectory<S> steps;
    Buffer<S> position;
    Buffer<float> normal;
    Buffer<double> sigma, by_mean, by_normal;  // the last two: sums over draws of the gradient g, and of g e

    explicit VariationalStep(const Job& job)
        : job(job),
          fit(*job.variational),
          n(job.network->n_parameters),
          n_padded((n + D::width - 1) / D::width * D::width),
          steps(job),
          position(n),
          normal(n * (fit.is_antithetic ? fit.n_draws / 2 : fit.n_draws)),
          sigma(n_padded),
          by_mean(n_padded),
          by_normal(n_padded) {}

    void run(int start) {
        steps.begin(start);
        for (int step = 0; step < job.n_steps; ++step) take(start, step);
    }

    void take(int start, int step) {
        const double *mean = fit.mean + start * n, *rho = fit.rho + start * n;
        const int n_different = fit.is_antithetic ? fit.n_draws / 2 : fit.n_draws;
        const long place = long(step) * job.n_chains + start;
        fit.log_widths[place] = set_sigma(rho);
        rayfbnn::NormalPlace normals = fit.normals;
        normals.iteration += unsigned(step);
        write_normals(normals, start, 0, n * n_different, normal);
        memset(by_mean, 0, n_padded * sizeof(double));
        memset(by_normal, 0, n_padded * sizeof(double));
        steps.data.begin_batch(start, step);
        for (int draw = 0; draw < fit.n_draws; ++draw) {
            const float* e = normal + long(draw % n_different) * n;
            const double sign = draw < n_different ? 1 : -1;
            for (long k = 0; k < n; ++k) position[k] = S(mean[k] + sigma[k] * (sign * double(e[k])));
            steps.data.evaluate(position, -1, true, true);
            job.terms[place * fit.n_draws + draw] = steps.data.terms;
            job.prior_energy[place * fit.n_draws + draw] = add_gradient(e, sign);
        }
        const double* rates = fit.rates + 3 * step;
        const long whole = n / D::width * D::width;
        for (long k = 0; k < whole; k += D::width) update<true>(start, rates, k);
        if (whole < n) update<false>(start, rates, whole);
    }

    // Sets sigma = log(1 + exp(rho)), and returns the sum of its logarithms.
    double set_sigma(const double* rho) {
        PackDouble total = {};
        const long whole = n / D::width * D::width;
        for (long k = 0; k < whole; k += D::width) total += D::log(set_sigma_at<true>(rho, k));
        if (whole < n) {
            const PackDouble last = D::log(set_sigma_at<false>(rho, whole));
            for (long place = 0; place < n - whole; ++place) total[place] += last[place];
        }
        double sum = 0;
        for (int place = 0; place < D::width; ++place) sum += total[place];
        return sum;
    }

    template <bool IS_WHOLE>
    PackDouble set_sigma_at(const double* rho, long k) {
        const PackDouble r = read<IS_WHOLE>(rho + k, k);
        const PackDouble found = D::at_least(r, 0) + D::log1p_of_fraction(D::exp_of_negative(-D::absolute(r)));
        memcpy(sigma + k, &found, sizeof found);
        return found;
    }

    // The pack of parameters from number k on: all of it, or what is left of the parameters.
    template <bool IS_WHOLE>
    PackDouble read(const double* from, long k) const {
        return doubles_of(from, IS_WHOLE ? D::width : int(n - k));
    }
    template <bool IS_WHOLE>
    void write(double* to, PackDouble x, long k) const {
        memcpy(to, &x, IS_WHOLE ? sizeof x : size_t(n - k) * sizeof(double));
    }

    // Adds a draw's gradient g, and g e, and returns the prior's energy.
    double add_gradient(const float* __restrict e, double sign) {
        double *__restrict by = by_mean, *__restrict times = by_normal;
        const S *__restrict data = steps.data.gradient(), *__restrict q = position;
        const double* __restrict tau = steps.taus;
        const Network& net = *job.network;
        double energy = 0;
        for (int s = 0; s < net.n_segments; ++s) {
            const rayfbnn::Segment& segment = net.segments[s];
            if (is_gaussian(segment.alpha)) {
                constexpr int N = 8;  // sums side by side, which compilers do not make of one
                double parts[N] = {};
                int k = segment.start;
                for (; k + N <= segment.stop; k += N)
                    for (int j = 0; j < N; ++j) {
                        const double w = double(q[k + j]), slope = tau[k + j] * w;
                        const double gradient = double(data[k + j] + S(slope));
                        by[k + j] += gradient;
                        times[k + j] += gradient * (sign * double(e[k + j]));
                        parts[j] += slope * w;
                    }
                for (; k < segment.stop; ++k) {
                    const double w = double(q[k]), slope = tau[k] * w, gradient = double(data[k] + S(slope));
                    by[k] += gradient;
                    times[k] += gradient * (sign * double(e[k]));
                    parts[0] += slope * w;
                }
                for (int j = 0; j < N; ++j) energy += 0.5 * parts[j];
                continue;
            }
            for (int k = segment.start; k < segment.stop; ++k) {
                const double w = double(q[k]);
                const double gradient = double(data[k] + S(prior_slope(w, tau[k], segment.alpha)));
                by[k] += gradient;
                times[k] += gradient * (sign * double(e[k]));
                energy += prior_term(w, tau[k], segment.alpha);
            }
        }
        return energy;
    }

    // Takes Adam's step in the parameters from number k on.
    template <bool IS_WHOLE>
    void update(int start, const double* rates, long k) {
        double *mean = fit.mean + start * n + k, *rho = fit.rho + start * n + k;
        const PackDouble r = read<IS_WHOLE>(rho, k);
        PackDouble by, times, sd;
        memcpy(&by, by_mean + k, sizeof by), memcpy(&times, by_normal + k, sizeof by), memcpy(&sd, sigma + k, sizeof by);
        const double share = 1.0 / fit.n_draws;
        descend<IS_WHOLE>(rates, by * share, mean, 2 * start * n + k, k);
        descend<IS_WHOLE>(rates, (times * share - 1 / sd) * D::logistic(r), rho, (2 * start + 1) * n + k, k);
    }

    // Kingma and Ba (2015); `place` is that of the moments.
    template <bool IS_WHOLE>
    void descend(const double* rates, PackDouble slope, double* to, long place, long k) {
        PackDouble value = read<IS_WHOLE>(to, k);
        PackDouble first = read<IS_WHOLE>(fit.first + place, k), second = read<IS_WHOLE>(fit.second + place, k);
        first = fit.first_decay * first + (1 - fit.first_decay) * slope;
        second = fit.second_decay * second + (1 - fit.second_decay) * slope * slope;
        value -= rates[0] / rates[1] * first / (D::root(second * (1 / rates[2])) + fit.small);
        write<IS_WHOLE>(to, value, k);
        write<IS_WHOLE>(fit.first + place, first, k);
        write<IS_WHOLE>(fit.second + place, second, k);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
