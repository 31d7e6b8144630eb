// Steps of Bayes by Backprop, of one start after the other.
#ifndef RAYFBNN_VARIATIONAL_HPP
#define RAYFBNN_VARIATIONAL_HPP

#include <string.h>

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

// The logarithm of a product of normal numbers, place by place. Powers of two are counted separately, so one logarithm
// is enough for up to 1,000 factors.
class LogOfProduct {
    typedef Format<double> Bits;

   public:
    RAYFBNN_METHOD void multiply(PackDouble x) {
        const PackLong bits = bits_of(x), n = (bits - bits_of(0.70710678118654752)) >> Bits::mantissa;
        exponent_ += n;
        rest_ *= value_of(bits - (n << Bits::mantissa));  // between sqrt(1/2) and sqrt(2)
    }
    RAYFBNN_METHOD PackDouble value() const {
        const PackDouble exponent = value_of(exponent_ + bits_of(Bits::magic)) - Bits::magic;
        return Lane<PackDouble>::log(rest_) + exponent * LOG_2;
    }

   private:
    PackDouble rest_ = splat<PackDouble>(1);
    PackLong exponent_ = {};
};

// Between gradients a step goes through the parameters TILE at a time. The results of one loop are then still in the
// first-level cache for the next. The loops are short: a processor works on several packs at once only if their
// instructions fit into its window.
template <class S>
struct VariationalStep {
    typedef typename Pack<S>::Type L;
    typedef Lane<L> F;
    typedef Lane<PackDouble> D;
    static constexpr int W = F::width;
    static constexpr long TILE = 1024;

    // The constants of a step of Adam, copied so that a loop can keep them in registers.
    struct Rule {
        S keep_first, add_first, keep_second, add_second, rate, scale, small;
    };

    const Job& job;
    const rayfbnn::Variational& fit;
    const long n, n_padded;  // parameters, and places for them in whole packs
    const int n_different;   // draws of normal numbers in a step
    Trajectory<S> steps;
    // These belong to the current start. Each step rounds them to S, so the number of steps in a call has no influence
    // on them.
    Buffer<S> mean, rho;
    Buffer<S> first, second;  // the moments of the mean's slopes, and from n_padded on those of rho's
    Buffer<S> position, sigma;
    Buffer<S> sigma_slope;  // the derivative of sigma, the logistic function of rho
    Buffer<S> tau;
    Buffer<float> normal;
    // Sums over draws of the gradient g, and of g e; those of the last draw are in use only for a tile.
    Buffer<S> by_mean, by_normal;
    S last_by_mean[TILE], last_by_normal[TILE];
    long n_written = 0;            // of the step's normal numbers
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
          sigma_slope(n_padded),
          tau(n_padded),
          normal(n * n_different + W),
          by_mean(n_padded),
          by_normal(n_padded) {
        for (long k = n; k < n_padded; ++k) mean[k] = rho[k] = 0;
        memset(last_by_mean, 0, sizeof last_by_mean), memset(last_by_normal, 0, sizeof last_by_normal);
        memset(first, 0, 2 * n_padded * sizeof(S)), memset(second, 0, 2 * n_padded * sizeof(S));
    }

    void run(int start) {
        steps.begin(start);
        for (long k = 0; k < n; ++k) tau[k] = S(steps.taus[k]);
        copy_state<true>(start);
        log_widths = 0;
        set_sigma(0, n_padded);
        n_written = 0;
        const Normals numbers = normals_of_step(start, 0);
        for (long begin = 0; begin < n_padded; begin += TILE) set_position(numbers, 0, begin, end_of(begin));
        for (int step = 0; step < job.n_steps; ++step) take(start, step);
        copy_state<false>(start);
    }

    // Reads or writes the start's state, which is in double outside.
    template <bool IS_IN>
    void copy_state(int start) {
        copy<IS_IN>(mean, fit.mean + start * n);
        copy<IS_IN>(rho, fit.rho + start * n);
        for (int half = 0; half < 2; ++half) {
            copy<IS_IN>(first + half * n_padded, fit.first + (2 * start + half) * n);
            copy<IS_IN>(second + half * n_padded, fit.second + (2 * start + half) * n);
        }
    }
    template <bool IS_IN>
    void copy(S* own, double* outside) const {
        for (long k = 0; k < n; ++k)
            if (IS_IN)
                own[k] = S(outside[k]);
            else
                outside[k] = double(own[k]);
    }

    void take(int start, int step) {
        const long place = long(step) * job.n_chains + start;
        fit.log_widths[place] = log_widths;
        log_widths = 0;
        double energy = 0, terms = 0;  // summed over draws
        steps.data.begin_batch(step);
        const Normals numbers = normals_of_step(start, step), next_numbers = normals_of_step(start, step + 1);
        for (int draw = 0; draw < fit.n_draws; ++draw) {
            const bool is_last = draw + 1 == fit.n_draws;
            steps.data.evaluate(position, -1, true, true);
            if (is_last) n_written = 0;
            for (long begin = 0; begin < n_padded; begin += TILE) {
                const long end = end_of(begin);
                energy += draw == 0   ? add_gradient<0>(draw, is_last, begin, end)
                          : draw == 1 ? add_gradient<1>(draw, is_last, begin, end)
                                      : add_gradient<2>(draw, is_last, begin, end);
                if (!is_last) {
                    set_position(numbers, draw + 1, begin, end);
                } else {
                    update(fit.rates + 3 * step, begin, end);
                    set_position(next_numbers, 0, begin, end);
                }
            }
            terms += steps.data.terms;
        }
        job.terms[place] = terms / fit.n_draws;
        job.prior_energy[place] = energy / fit.n_draws;
    }

    long end_of(long begin) const { return begin + TILE < n_padded ? begin + TILE : n_padded; }

    Normals normals_of_step(int start, int step) const {
        rayfbnn::StreamPlace place = fit.normals;
        place.iteration += unsigned(step);
        return Normals(place, start, 0);
    }

    // The normal numbers e of a draw, the mirror images of an earlier draw's if `sign` is -1.
    const float* normals_of(int draw, S& sign) const {
        sign = draw < n_different ? S(1) : S(-1);
        return normal + long(draw % n_different) * n;
    }

    // Sets the position of a draw to mean + sigma e. Normal numbers that are not there yet are written; those of a
    // step's first draw go over numbers of the step before that have been used.
    void set_position(const Normals& numbers, int draw, long begin, long end) {
        if (draw < n_different) {
            const long needed = (draw * n + end + GROUP_OF_WORDS - 1) / GROUP_OF_WORDS * GROUP_OF_WORDS;
            const long stop = needed < n * n_different ? needed : n * n_different;
            if (stop > n_written) numbers.write(n_written, stop, normal + n_written), n_written = stop;
        }
        S sign;
        const float* e = normals_of(draw, sign);
        const S *centre = mean, *width = sigma;
        S* to = position;
        for (long k = begin; k < end; k += W)
            write(to + k, reals(centre + k) + reals(width + k) * (sign * singles(e + k)));
    }

    // Sets sigma = log(1 + exp(rho)) and its derivative, and adds its logarithms. There is one copy of this function: those
    // of different callers may fuse other multiplications with additions, and a call's first step would be rounded in
    // another way.
    __attribute__((noinline)) void set_sigma(long begin, long end) {
        const S* from = rho;
        S *width = sigma, *slope = sigma_slope;
        for (long k = begin; k < end; k += W) {
            const L x = reals(from + k), e = F::exp_of_negative(-F::absolute(x));
            write(width + k, F::at_least(x, 0) + F::quick_log1p_of_fraction(e));
            write(slope + k, F::select(x < 0, e, F::splat(1)) * F::reciprocal(e + 1));
        }
        for (long k = n; k < end; ++k) width[k] = 1;
        constexpr int PARTS = W / D::width;
        constexpr int AT_ONCE = F::is_double ? 1 : 8;  // numbers of S whose product is one of double
        LogOfProduct all;
        for (long k = begin; k < end;) {
            PackDouble product[PARTS];
            for (int h = 0; h < PARTS; ++h) product[h] = doubles_of(width + (k + h * D::width));
            k += W;
            for (int factor = 1; factor < AT_ONCE && k < end; ++factor, k += W)
                for (int h = 0; h < PARTS; ++h) product[h] *= doubles_of(width + (k + h * D::width));
            for (int h = 0; h < PARTS; ++h) all.multiply(product[h]);
        }
        log_widths += sum_of_places(all.value());
    }

    // Adds a draw's gradient g, and g e, and returns the prior's energy. NUMBER is that of the draw, or 2 for later
    // ones. g e of the first draw is not kept: it is made again from g when the second is added.
    template <int NUMBER>
    double add_gradient(int draw, bool is_last, long begin, long end) {
        S sign;
        const float *e = normals_of(draw, sign), *e_of_first = normal;
        const S *data = steps.data.gradient(), *q = position, *precision = tau;
        const S *mean_sum = by_mean, *normal_sum = by_normal;
        S *new_mean_sum = is_last ? last_by_mean - begin : static_cast<S*>(by_mean);
        S *new_normal_sum = is_last ? last_by_normal - begin : static_cast<S*>(by_normal);
        const Network& net = *job.network;
        L sums = {};
        double energy = 0;
        for (int s = 0; s < net.n_segments; ++s) {
            const rayfbnn::Segment& segment = net.segments[s];
            long k = segment.start > begin ? segment.start : begin;
            const long stop = segment.stop < end ? segment.stop : end;
            if (is_gaussian(segment.alpha))
                for (; k + W <= stop; k += W) {
                    const L w = reals(q + k), slope = reals(precision + k) * w;
                    sums += slope * w;
                    const L gradient = reals(data + k) + slope, product = gradient * (sign * singles(e + k));
                    if constexpr (NUMBER == 0) {
                        write(new_mean_sum + k, gradient);
                        if (is_last) write(new_normal_sum + k, product);
                    } else {
                        const L sum = reals(mean_sum + k);
                        write(new_mean_sum + k, sum + gradient);
                        const L of_products = NUMBER == 1 ? sum * singles(e_of_first + k) : reals(normal_sum + k);
                        write(new_normal_sum + k, of_products + product);
                    }
                }
            for (; k < stop; ++k) {
                const double w = double(q[k]);
                const S gradient = data[k] + S(prior_slope(w, steps.taus[k], segment.alpha));
                const S sum = NUMBER == 0 ? S(0) : mean_sum[k];
                const S of_products = NUMBER == 0 ? S(0) : NUMBER == 1 ? sum * S(e_of_first[k]) : normal_sum[k];
                new_mean_sum[k] = sum + gradient;
                new_normal_sum[k] = of_products + gradient * (sign * S(e[k]));
                energy += prior_term(w, steps.taus[k], segment.alpha);
            }
        }
        return energy + 0.5 * sum_of_places(sums);
    }

    // Takes Adam's step, and sets the next sigma.
    void update(const double* rates, long begin, long end) {
        const S share = S(1.0 / fit.n_draws);
        const Rule rule = {
            S(fit.first_decay), S(1 - fit.first_decay), S(fit.second_decay), S(1 - fit.second_decay),
            S(rates[0] / rates[1]), S(1 / rates[2]), S(fit.small)};
        const S *mean_sum = last_by_mean - begin, *normal_sum = last_by_normal - begin;
        const S *width = sigma, *slope = sigma_slope;
        S *centre = mean, *of_width = rho, *m = first, *v = second;
        for (long k = begin; k < end; k += W) descend(rule, reals(mean_sum + k) * share, centre + k, m + k, v + k);
        m += n_padded, v += n_padded;
        for (long k = begin; k < end; k += W) {
            const L by_sigma = reals(normal_sum + k) * share - F::reciprocal(reals(width + k));
            descend(rule, by_sigma * reals(slope + k), of_width + k, m + k, v + k);
        }
        set_sigma(begin, end);
    }

    // Kingma and Ba (2015).
    static RAYFBNN_METHOD void descend(const Rule& rule, L slope, S* to, S* first, S* second) {
        const L m = rule.keep_first * reals(first) + rule.add_first * slope;
        const L v = rule.keep_second * reals(second) + rule.add_second * slope * slope;
        write(to, reals(to) - rule.rate * m * F::reciprocal(F::quick_root(v * rule.scale) + rule.small));
        write(first, m), write(second, v);
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
