// Whole trajectories of all chains, one chain after the other. This file is compiled once for each instruction set;
// RAYFBNN_NAMESPACE and RAYFBNN_KERNELS name what it defines.
//
// The C++ standard library is not used here. The linker keeps one copy of a library function that several files
// instantiate, and that copy must not hold instructions that another machine lacks.
#include "trajectory.hpp"

#include "steps/friction.hpp"
#include "steps/leapfrog.hpp"
#include "steps/shuffles.hpp"
#include "steps/variational.hpp"

namespace RAYFBNN_NAMESPACE {

void reduce_float(const Job&);  // reduce/reduction.cpp
void reduce_double(const Job&);

template <class Task>
void run_all(const Job& job) {
    Task task(job);
    for (int chain = 0; chain < job.n_chains; ++chain) task.run(chain);
}

template <class S>
void run(const Job& job) {
    if (job.friction)
        run_all<FrictionSteps<S>>(job);
    else if (job.variational)
        run_all<VariationalStep<S>>(job);
    else
        run_all<Trajectory<S>>(job);
}

}  // namespace RAYFBNN_NAMESPACE

namespace rayfbnn {

const Kernels& RAYFBNN_KERNELS() {
    using namespace RAYFBNN_NAMESPACE;
    static const Kernels kernels = {
        RAYFBNN_NAME,
        Lane<PackFloat>::width,
        Lane<PackDouble>::width,
        run<float>,
        run<double>,
        reduce_float,
        reduce_double,
        write_normals,
        write_shuffles,
    };
    return kernels;
}

}  // namespace rayfbnn
