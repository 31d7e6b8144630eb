// Sums over draws, compiled once for each instruction set and apart from the trajectories, whose inlining and so whose
// last bits would depend on what else is in their file.
//
// As in trajectory.cpp the C++ standard library is not used here.
#include "trajectory.hpp"

#include "reduce/sums.hpp"

namespace RAYFBNN_NAMESPACE {

void reduce_float(const Job& job) { Reducer<float>(job).run(); }
void reduce_double(const Job& job) { Reducer<double>(job).run(); }

}  // namespace RAYFBNN_NAMESPACE
