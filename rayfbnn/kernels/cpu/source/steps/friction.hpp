// Steps of dynamics with friction, of one chain after the other.
#ifndef RAYFBNN_FRICTION_HPP
#define RAYFBNN_FRICTION_HPP

#include <string.h>

#include "leapfrog.hpp"
#include "normals.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct FrictionSteps {
    const Job& job;
    const rayfbnn::Friction& friction;
    Trajectory<S> steps;
    Buffer<float> normal;

    explicit FrictionSteps(const Job& job)
        : job(job), friction(*job.friction), steps(job), normal(job.network->n_parameters) {}

    void run(int chain) {
        const long n = job.network->n_parameters;
        steps.begin(chain);
        S *position, *momentum;
        steps.copy_state(position, momentum);
        const S* stepsizes = static_cast<const S*>(job.stepsizes) + chain * n;
        S* kick = steps.full;
        for (long k = 0; k < n; ++k) kick[k] = S(friction.kick) * stepsizes[k];
        for (long step = 0; step < job.n_steps; ++step) {
            write_normals(friction.normals, chain, step, n, normal);
            drift(position, momentum, stepsizes, normal, n);
            steps.data.begin_batch(chain, step);
            steps.data.evaluate(position, -1, false, true);
            steps.template kick_and_drift<true>(position, momentum, kick, nullptr);
        }
    }

    void drift(
        S* __restrict position, S* __restrict momentum, const S* __restrict stepsizes, const float* __restrict normal,
        long n) const {
        const S first = S(friction.first), second = S(friction.second);
        const S persistence = S(friction.persistence), noise = S(friction.noise);
        for (long k = 0; k < n; ++k) {
            const S q = position[k] + first * stepsizes[k] * momentum[k];
            const S p = persistence * momentum[k] + noise * S(normal[k]);
            position[k] = q + second * stepsizes[k] * p;
            momentum[k] = p;
        }
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
