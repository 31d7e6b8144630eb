// Steps of dynamics with friction, of one chain after the other.
#ifndef RAYFBNN_FRICTION_HPP
#define RAYFBNN_FRICTION_HPP

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct FrictionSteps {
    static constexpr long TILE = 16 * GROUP_OF_WORDS;

    const Job& job;
    const rayfbnn::Friction& friction;
    const long n;  // parameters
    const S first, second, persistence, noise, kick;
    Trajectory<S> steps;

    explicit FrictionSteps(const Job& job)
        : job(job),
          friction(*job.friction),
          n(job.network->n_parameters),
          first(S(friction.first)),
          second(S(friction.second)),
          persistence(S(friction.persistence)),
          noise(S(friction.noise)),
          kick(S(friction.kick)),
          steps(job) {}

    // A step's kick and the next step's drift go through the parameters together, TILE at a time, so that normal
    // numbers are still in the first-level cache when they are used.
    void run(int chain) {
        steps.begin(chain);
        S *position, *momentum;
        steps.copy_state(position, momentum);
        const S* stepsizes = static_cast<const S*>(job.stepsizes) + chain * n;
        float normal[TILE];
        const Normals numbers(friction.normals, chain, 0);
        for (long begin = 0; begin < n; begin += TILE) {
            const long end = begin + TILE < n ? begin + TILE : n;
            numbers.write(begin, end, normal);
            for (long k = begin; k < end; ++k) drift(position[k], momentum[k], stepsizes[k], normal[k - begin]);
        }
        for (long step = 0; step < job.n_steps; ++step) {
            steps.data.begin_batch(step);
            steps.data.evaluate(position, -1, false, true);
            const bool is_last = step + 1 == job.n_steps;
            const Normals numbers(friction.normals, chain, step + 1);
            for (long begin = 0; begin < n; begin += TILE) {
                const long end = begin + TILE < n ? begin + TILE : n;
                if (is_last) {
                    kick_and_drift<true>(begin, end, position, momentum, stepsizes, normal);
                } else {
                    numbers.write(begin, end, normal);
                    kick_and_drift<false>(begin, end, position, momentum, stepsizes, normal);
                }
            }
        }
    }

    template <bool IS_LAST>
    void kick_and_drift(
        long begin, long end, S* __restrict position, S* __restrict momentum, const S* __restrict stepsizes,
        const float* __restrict normals) const {
        const double* __restrict tau = steps.taus;
        const S* __restrict data = steps.data.gradient();
        for (int s = 0; s < job.network->n_segments; ++s) {
            const Segment& segment = job.network->segments[s];
            const double alpha = segment.alpha;
            const long start = segment.start > begin ? segment.start : begin;
            const long stop = segment.stop < end ? segment.stop : end;
            if (is_gaussian(alpha)) {
                for (long k = start; k < stop; ++k) {
                    const S gradient = data[k] + S(tau[k] * double(position[k]));
                    momentum[k] -= kick * stepsizes[k] * gradient;
                    if (!IS_LAST) drift(position[k], momentum[k], stepsizes[k], normals[k - begin]);
                }
            } else {
                for (long k = start; k < stop; ++k) {
                    const S gradient = data[k] + S(prior_slope(double(position[k]), tau[k], alpha));
                    momentum[k] -= kick * stepsizes[k] * gradient;
                    if (!IS_LAST) drift(position[k], momentum[k], stepsizes[k], normals[k - begin]);
                }
            }
        }
    }

    RAYFBNN_METHOD void drift(S& position, S& momentum, S stepsize, float normal) const {
        const S q = position + first * stepsize * momentum;
        const S p = persistence * momentum + noise * S(normal);
        position = q + second * stepsize * p;
        momentum = p;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
