// Sums over draws, compiled once for each instruction set and apart from the trajectories, whose inlining and so whose
// last bits would depend on what else is in their file.
//
// As in trajectory.cpp the C++ standard library is not used here.
#include "trajectory.hpp"

#include "reduce/count_sums.hpp"
#include "reduce/distributions.hpp"
#include "reduce/moments.hpp"
#include "reduce/scores.hpp"
#include "reduce/time_sums.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S, bool WITH_CDF>
static Sums<S>* counts_for(const Job& job) {
    typedef Lane<PackDouble> D;
    if (job.network->model == COUNT) return new CountSums<S, PoissonLaw<D>, WITH_CDF>(job);
    return new CountSums<S, DispersedLaw<D>, WITH_CDF>(job);
}

template <class S>
static Sums<S>* sums_for(const Job& job) {
    switch (job.reduction->kind) {
        case Reduction::OUTPUTS: return new Outputs<S>(job);
        case Reduction::MOMENTS: return new Moments<S>(job);
        case Reduction::SCORES: return new Scores<S>(job);
        case Reduction::MASS: return counts_for<S, false>(job);
        default: break;
    }
    if (job.network->model == COUNT || job.network->model == DISPERSED_COUNT) return counts_for<S, true>(job);
    if (job.network->model == SURVIVAL) return new TimeSums<S>(job);
    return new Distributions<S>(job);
}

template <class S>
static void reduce(const Job& job) {
    const Owner<Sums<S>> sums(sums_for<S>(job));
    sums->run();
}

void reduce_float(const Job& job) { reduce<float>(job); }
void reduce_double(const Job& job) { reduce<double>(job); }

}  // namespace RAYFBNN_NAMESPACE
