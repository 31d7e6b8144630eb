// Steps of dynamics with friction, of one chain after the other.
#ifndef RAYFBNN_FRICTION_HPP
#define RAYFBNN_FRICTION_HPP

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct FrictionSteps {
    const Job& job;
    const rayfbnn::Friction& friction;
    const long n;  // parameters
    const S first, second, persistence, noise, kick;
    Trajectory<S> steps;
    Buffer<float> normal;

    explicit FrictionSteps(const Job& job)
        : job(job),
          friction(*job.friction),
          n(job.network->n_parameters),
          first(S(friction.first)),
          second(S(friction.second)),
          persistence(S(friction.persistence)),
          noise(S(friction.noise)),
          kick(S(friction.kick)),
          steps(job),
          normal(n) {}

    // A step's kick and the next step's drift go through the parameters together.
    void run(int chain) {
        steps.begin(chain);
        S *position, *momentum;
        steps.copy_state(position, momentum);
        const S* stepsizes = static_cast<const S*>(job.stepsizes) + chain * n;
        write_normals(friction.normals, chain, 0, n, normal);
        for (long k = 0; k < n; ++k) drift(position[k], momentum[k], stepsizes[k], normal[k]);
        for (long step = 0; step < job.n_steps; ++step) {
            const bool is_last = step + 1 == job.n_steps;
            steps.data.begin_batch(chain, step, false);
            steps.data.evaluate(position, -1, false, true);
            if (!is_last) write_normals(friction.normals, chain, step + 1, n, normal);
            if (is_last)
                kick_and_drift<true>(position, momentum, stepsizes, normal);
            else
                kick_and_drift<false>(position, momentum, stepsizes, normal);
        }
    }

    template <bool IS_LAST>
    void kick_and_drift(
        S* __restrict position, S* __restrict momentum, const S* __restrict stepsizes,
        const float* __restrict normals) const {
        const double* __restrict tau = steps.taus;
        const S* __restrict data = steps.data.gradient();
        for (int s = 0; s < job.network->n_segments; ++s) {
            const Segment& segment = job.network->segments[s];
            const double alpha = segment.alpha;
            const int stop = segment.stop;
            if (is_gaussian(alpha)) {
                for (int k = segment.start; k < stop; ++k) {
                    const S gradient = data[k] + S(tau[k] * double(position[k]));
                    momentum[k] -= kick * stepsizes[k] * gradient;
                    if (!IS_LAST) drift(position[k], momentum[k], stepsizes[k], normals[k]);
                }
            } else {
                for (int k = segment.start; k < stop; ++k) {
                    const S gradient = data[k] + S(prior_slope(double(position[k]), tau[k], alpha));
                    momentum[k] -= kick * stepsizes[k] * gradient;
                    if (!IS_LAST) drift(position[k], momentum[k], stepsizes[k], normals[k]);
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
