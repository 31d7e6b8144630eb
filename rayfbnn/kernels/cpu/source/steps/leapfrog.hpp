// Leapfrog steps of one chain after the other, with the prior's part of the gradient.
#ifndef RAYFBNN_LEAPFROG_HPP
#define RAYFBNN_LEAPFROG_HPP

#include <string.h>

#include "data_potential.hpp"
#include "memory.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Integrated;
using rayfbnn::Segment;

// Leapfrog steps of a chain with the prior's part of the gradient.
template <class S>
struct Trajectory {
    const Job& job;
    const Network& net;
    DataPotential<S> data;
    long chain = 0;
    Buffer<S> half, full;  // stepsizes
    Buffer<double> taus;   // the parameters' precisions; where these are integrated out, those of the last gradient

    explicit Trajectory(const Job& job)
        : job(job),
          net(*job.network),
          data(job),
          half(net.n_parameters),
          full(net.n_parameters),
          taus(net.n_parameters) {}

    // rate + sum a w**2 of a group of parameters whose common precision is integrated out.
    double rate_of(const Integrated& group, const S* position) const {
        const double* a = job.precisions + chain * net.n_parameters;
        double rate = group.rate;
        for (int k = group.start; k < group.stop; ++k) rate += a[k] * double(position[k]) * double(position[k]);
        return rate;
    }

    // Sets the precisions with which a Gaussian prior has the slopes of the prior that is left after the common
    // precision has been integrated out.
    void set_integrated_taus(const S* position) {
        const double* a = job.precisions + chain * net.n_parameters;
        for (int g = 0; g < net.n_integrated; ++g) {
            const Integrated& group = net.integrated[g];
            const double factor = integrated_factor(rate_of(group, position), group.shape);
            for (int k = group.start; k < group.stop; ++k) taus[k] = factor * a[k];
        }
    }

    double prior_energy(const S* position) {
        const double* tau = taus;
        double total = 0;
        for (int g = 0; g < net.n_integrated; ++g) {
            const Integrated& group = net.integrated[g];
            total += integrated_term(rate_of(group, position), group.shape);
            for (int k = group.start; k < group.stop; ++k) taus[k] = 0;
        }
        for (int s = 0; s < net.n_segments; ++s)
            for (int k = net.segments[s].start; k < net.segments[s].stop; ++k)
                total += prior_term(double(position[k]), tau[k], net.segments[s].alpha);
        return total;
    }

    // p -= kick * gradient, and then q += drift * p except after the last gradient.
    template <bool IS_LAST>
    void kick_and_drift(
        S* __restrict position, S* __restrict momentum, const S* __restrict kick, const S* __restrict drift) {
        set_integrated_taus(position);
        const double* __restrict tau = taus;
        const S* __restrict data_gradient = data.gradient();
        for (int s = 0; s < net.n_segments; ++s) {
            const int stop = net.segments[s].stop;
            const double alpha = net.segments[s].alpha;
            if (is_gaussian(alpha)) {
                for (int k = net.segments[s].start; k < stop; ++k) {
                    const S gradient = data_gradient[k] + S(tau[k] * double(position[k]));
                    momentum[k] -= kick[k] * gradient;
                    if (!IS_LAST) position[k] += drift[k] * momentum[k];
                }
            } else {
                for (int k = net.segments[s].start; k < stop; ++k) {
                    const S gradient = data_gradient[k] + S(prior_slope(double(position[k]), tau[k], alpha));
                    momentum[k] -= kick[k] * gradient;
                    if (!IS_LAST) position[k] += drift[k] * momentum[k];
                }
            }
        }
    }

    // Takes the numbers of a chain.
    void begin(int number) {
        chain = number;
        data.begin_chain(number);
        memcpy(taus, job.precisions + chain * net.n_parameters, net.n_parameters * sizeof(double));
    }

    // Copies a chain's position and momentum to where they are to end, and returns these places.
    void copy_state(S*& position, S*& momentum) const {
        const long n = net.n_parameters;
        position = static_cast<S*>(job.new_position) + chain * n;
        momentum = static_cast<S*>(job.new_momentum) + chain * n;
        memcpy(position, static_cast<const S*>(job.position) + chain * n, n * sizeof(S));
        memcpy(momentum, static_cast<const S*>(job.momentum) + chain * n, n * sizeof(S));
    }

    void run(int number) {
        begin(number);
        const long n = net.n_parameters;
        S *position, *momentum;
        copy_state(position, momentum);
        const S* stepsizes = static_cast<const S*>(job.stepsizes) + chain * n;
        for (long k = 0; k < n; ++k) full[k] = stepsizes[k] / job.n_partitions, half[k] = full[k] / 2;
        if (job.n_steps < 0) {
            data.evaluate(position, -1, false, true);
            kick_and_drift<true>(position, momentum, half, full);
            return;
        }
        const long long* order = job.order ? job.order + chain * job.n_partitions : nullptr;
        const long n_gradients = long(job.n_steps) * job.n_partitions;
        for (long number = 0; n_gradients > 0 && number <= n_gradients; ++number) {
            const bool is_last = number == n_gradients;
            data.evaluate(position, order ? int(order[number % job.n_partitions]) : -1, is_last && !order, true);
            const S* kick = number == 0 || is_last ? half : full;
            if (is_last)
                kick_and_drift<true>(position, momentum, kick, full);
            else
                kick_and_drift<false>(position, momentum, kick, full);
        }
        if (order || n_gradients == 0) data.evaluate(position, -1, true, false);
        job.terms[chain] = data.terms;
        job.prior_energy[chain] = prior_energy(position);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
