// Steps of Bayes by Backprop, of one start after the other.
#ifndef RAYFBNN_VARIATIONAL_HPP
#define RAYFBNN_VARIATIONAL_HPP

#include <string.h>

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

// Between gradients a step goes through the parameters TILE at a time, so that what one loop leaves is in the
// first-level cache for the next. The loops are short: a processor works on several packs at once only if their
// instructions fit into its window.
template <class S>
struct VariationalStep {
    typedef typename Pack<S>::Type L;
    typedef Lane<L> F;
    static constexpr int W = F::width;
    static constexpr long TILE = 512;
    typedef Lane<PackDouble> D;
    static constexpr int PARTS = W / D::width;
    // A pack of the state, which is in double.
    struct Wide {
        PackDouble at[PARTS];
    };

    const Job& job;
    const rayfbnn::Variational& fit;
    const long n, n_padded;  // parameters, and places for them in whole packs
    const int n_different;   // draws of normal numbers in a step
    Trajectory<S> steps;
    // These belong to the current start. The state is in double, but each step rounds the moments of Adam to S.
    Buffer<double> mean, rho;
    Buffer<S> first, second;  // the moments of the mean's slopes, and from n_padded on those of rho's
    Buffer<S> position, sigma;
    Buffer<float> normal;
    Buffer<S> by_mean, by_normal;  // sums over draws of the gradient g, and of g e
    double log_widths = 0;         // the logarithms of sigma, summed

    explicit VariationalStep(const Job& job)
        : job(job),
          fit(*job.variational),
          n(job.network->n_parameters),
          n_padded((n + W - 1) / W * W),
          n_different(fit.is_antithetic ? fit.n_draws / 2 : fit.n_draws),
          steps(job),
          mean(n_padded),
          rho(n_padded),
          first(2 * n_padded),
          second(2 * n_padded),
          position(n_padded),
          sigma(n_padded),
          normal(n * n_different + W),
          by_mean(n_padded),
          by_normal(n_padded) {
        for (long k = n; k < n_padded; ++k) mean[k] = rho[k] = 0, by_mean[k] = by_normal[k] = 0;
        memset(first, 0, 2 * n_padded * sizeof(S)), memset(second, 0, 2 * n_padded * sizeof(S));
    }

    void run(int start) {
        steps.begin(start);
        memcpy(mean, fit.mean + start * n, n * sizeof(double));
        memcpy(rho, fit.rho + start * n, n * sizeof(double));
        copy_moments<true>(start);
        log_widths = 0;
        set_sigma(0, n_padded);
        for (int step = 0; step < job.n_steps; ++step) take(start, step);
        memcpy(fit.mean + start * n, mean, n * sizeof(double));
        memcpy(fit.rho + start * n, rho, n * sizeof(double));
        copy_moments<false>(start);
    }

    template <bool IS_IN>
    void copy_moments(int start) {
        for (int half = 0; half < 2; ++half) {
            double *m = fit.first + (2 * start + half) * n, *v = fit.second + (2 * start + half) * n;
            S *own_m = first + half * n_padded, *own_v = second + half * n_padded;
            for (long k = 0; k < n; ++k)
                if (IS_IN)
                    own_m[k] = S(m[k]), own_v[k] = S(v[k]);
                else
                    m[k] = double(own_m[k]), v[k] = double(own_v[k]);
        }
    }

    void take(int start, int step) {
        const long place = long(step) * job.n_chains + start;
        fit.log_widths[place] = log_widths;
        log_widths = 0;
        rayfbnn::StreamPlace normals = fit.normals;
        normals.iteration += unsigned(step);
        write_normals(normals, start, 0, n * n_different, normal);
        steps.data.begin_batch(start, step, true);
        set_position(0, 0, n_padded);
        for (int draw = 0; draw < fit.n_draws; ++draw) {
            steps.data.evaluate(position, -1, true, true);
            double energy = 0;
            for (long begin = 0; begin < n_padded; begin += TILE) {
                const long end = begin + TILE < n_padded ? begin + TILE : n_padded;
                energy += draw == 0 ? add_gradient<true>(draw, begin, end) : add_gradient<false>(draw, begin, end);
                if (draw + 1 < fit.n_draws)
                    set_position(draw + 1, begin, end);
                else
                    update(fit.rates + 3 * step, begin, end);
            }
            job.terms[place * fit.n_draws + draw] = steps.data.terms;
            job.prior_energy[place * fit.n_draws + draw] = energy;
        }
    }

    // The normal numbers e of a draw, the mirror images of an earlier draw's if `sign` is -1.
    const float* normals_of(int draw, S& sign) const {
        sign = draw < n_different ? S(1) : S(-1);
        return normal + long(draw % n_different) * n;
    }

    // Sets the position of a draw to mean + sigma e.
    void set_position(int draw, long begin, long end) {
        S sign;
        const float* e = normals_of(draw, sign);
        for (long k = begin; k < end; k += W) {
            const Wide centre = wide(mean + k), shift = wide(reals(sigma + k) * (sign * singles(e + k)));
            Wide sum;
            for (int h = 0; h < PARTS; ++h) sum.at[h] = centre.at[h] + shift.at[h];
            write(position + k, reals(sum));
        }
    }

    // Sets sigma = log(1 + exp(rho)), and adds its logarithms.
    void set_sigma(long begin, long end) {
        for (long k = begin; k < end; k += W) {
            const L x = reals(wide(rho + k));
            write(sigma + k, F::at_least(x, 0) + F::log1p_of_fraction(F::exp_of_negative(-F::absolute(x))));
        }
        for (long k = n; k < end; ++k) sigma[k] = 1;
        constexpr int AT_ONCE = F::is_double ? 1 : 8;  // numbers of single precision whose product is one of double
        for (long k = begin; k < end;) {
            Wide product = wide(reals(sigma + k));
            k += W;
            for (int factor = 1; factor < AT_ONCE && k < end; ++factor, k += W) {
                const Wide next = wide(reals(sigma + k));
                for (int h = 0; h < PARTS; ++h) product.at[h] *= next.at[h];
            }
            for (int h = 0; h < PARTS; ++h) log_widths += sum_of(D::log(product.at[h]));
        }
    }

    // Adds a draw's gradient g, and g e, and returns the prior's energy.
    template <bool IS_FIRST>
    double add_gradient(int draw, long begin, long end) {
        S sign;
        const float* e = normals_of(draw, sign);
        const S *data = steps.data.gradient(), *q = position;
        const double* tau = steps.taus;
        const Network& net = *job.network;
        PackDouble sums[PARTS] = {};
        double energy = 0;
        for (int s = 0; s < net.n_segments; ++s) {
            const rayfbnn::Segment& segment = net.segments[s];
            long k = segment.start > begin ? segment.start : begin;
            const long stop = segment.stop < end ? segment.stop : end;
            if (is_gaussian(segment.alpha))
                for (; k + W <= stop; k += W) {
                    const Wide w = wide(reals(q + k));
                    Wide slope = wide(tau + k);
                    for (int h = 0; h < PARTS; ++h) slope.at[h] *= w.at[h], sums[h] += slope.at[h] * w.at[h];
                    const L gradient = reals(data + k) + reals(slope), product = gradient * (sign * singles(e + k));
                    write(by_mean + k, IS_FIRST ? gradient : reals(by_mean + k) + gradient);
                    write(by_normal + k, IS_FIRST ? product : reals(by_normal + k) + product);
                }
            for (; k < stop; ++k) {
                const double w = double(q[k]);
                const S gradient = data[k] + S(prior_slope(w, tau[k], segment.alpha));
                const S product = gradient * (sign * S(e[k]));
                by_mean[k] = IS_FIRST ? gradient : by_mean[k] + gradient;
                by_normal[k] = IS_FIRST ? product : by_normal[k] + product;
                energy += prior_term(w, tau[k], segment.alpha);
            }
        }
        for (int h = 0; h < PARTS; ++h) energy += 0.5 * sum_of(sums[h]);
        return energy;
    }

    // Takes Adam's step, and sets the next sigma.
    void update(const double* rates, long begin, long end) {
        const S share = S(1.0 / fit.n_draws);
        for (long k = begin; k < end; k += W) {
            const L slope_of_sigma = reals(by_normal + k) * share - 1 / reals(sigma + k);
            write(by_normal + k, slope_of_sigma * F::logistic(reals(wide(rho + k))));
        }
        for (long k = begin; k < end; k += W) descend(rates, reals(by_mean + k) * share, mean + k, k);
        for (long k = begin; k < end; k += W) descend(rates, reals(by_normal + k), rho + k, n_padded + k);
        set_sigma(begin, end);
    }

    // Kingma and Ba (2015); `place` is that of the moments.
    RAYFBNN_METHOD void descend(const double* rates, L slope, double* to, long place) {
        L m = reals(first + place), v = reals(second + place);
        m = S(fit.first_decay) * m + S(1 - fit.first_decay) * slope;
        v = S(fit.second_decay) * v + S(1 - fit.second_decay) * slope * slope;
        const Wide step = wide(S(rates[0] / rates[1]) * m / (F::root(v * S(1 / rates[2])) + S(fit.small)));
        Wide x = wide(to);
        for (int h = 0; h < PARTS; ++h) x.at[h] -= step.at[h];
        for (int h = 0; h < PARTS; ++h) memcpy(to + h * D::width, &x.at[h], sizeof x.at[h]);
        write(first + place, m), write(second + place, v);
    }

    static double sum_of(PackDouble x) {
        double sum = 0;
        for (int k = 0; k < D::width; ++k) sum += x[k];
        return sum;
    }
    static RAYFBNN_METHOD Wide wide(const double* from) {
        Wide x;
        for (int h = 0; h < PARTS; ++h) x.at[h] = doubles_of(from + h * D::width);
        return x;
    }
    static RAYFBNN_METHOD Wide wide(L from) {
        if constexpr (F::is_double)
            return {{from}};
        else
            return {{doubles_of_half<0>(from), doubles_of_half<1>(from)}};
    }
    static RAYFBNN_METHOD L reals(Wide from) {
        if constexpr (F::is_double)
            return from.at[0];
        else
            return singles_of(from.at[0], from.at[1]);
    }
    static RAYFBNN_METHOD L reals(const S* from) {
        L x;
        memcpy(&x, from, sizeof x);
        return x;
    }
    static RAYFBNN_METHOD L singles(const float* from) {
        float x __attribute__((vector_size(W * sizeof(float))));
        memcpy(&x, from, sizeof x);
        return __builtin_convertvector(x, L);
    }
    static RAYFBNN_METHOD void write(S* to, L x) { memcpy(to, &x, sizeof x); }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
