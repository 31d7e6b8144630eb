// What passes between the Python module and the trajectories, which are compiled once per instruction set.
#ifndef RAYFBNN_TRAJECTORY_HPP
#define RAYFBNN_TRAJECTORY_HPP

#include <stddef.h>

namespace rayfbnn {

// Thrown by any instruction set's kernels where there is no memory left.
struct OutOfMemory {};

// As ProgramLink of program.py. is_large: whether its weights and their gradient do not stay in the first cache;
// uses_blas: whether its products, then of a large link, are left to BLAS.
struct Link {
    int source, destination, start, n_units, n_destinations;
    bool has_biases, is_large, uses_blas;
};

// Consecutive parameters with one kind of prior.
struct Segment {
    int start, stop;
    double alpha;
};

// Gaussian parameters start .. stop - 1 whose common precision, a Gamma's, is integrated out: minus the log density
// is shape/2 log(rate + sum a w**2), a the factors that stand in place of their precisions.
struct Integrated {
    int start, stop;
    double shape, rate;
};

// As Program of program.py; links are ordered by destination.
struct Network {
    int n_layers;  // inputs and outputs included
    const int* units;
    const int* activations;  // of each layer; those of inputs and outputs are not looked at
    const int* offsets;
    int n_links;
    const Link* links;
    int n_segments;
    const Segment* segments;
    int n_integrated;
    const Integrated* integrated;
    int model;
    double alpha;
    int n_targets, n_parameters;
};

// The cases of one partition: first .. first + n_cases - 1, in packs n_packs, in blocks of packs.
//
// inputs of block b begin at inputs + n_inputs * block_starts[b] * width, (n_inputs, packs of the block, width); the
// last pack is filled up with the last case.
struct Partition {
    int first, n_cases, n_packs, n_blocks;
    const int* block_starts;  // (n_blocks + 1,) in packs
    const void* inputs;
};

// A row of a layer's units (with offsets) at all cases, or ones if it is -1.
struct Feature {
    int layer, row;
};

// Features whose prior precisions are multiplied by exp(x), x a coordinate of the position with the density of the
// log of a Gamma variable of shape `half` and mean `mean`.
struct Moved {
    int first, stop;
    double half, mean;
};

// A linear regression of the targets on features, its coefficients integrated out, as Regression of
// model/regression.py; without features there is none. The last n_moved parameters are those of `moved`. is_dual:
// by matrices of the cases.
struct Regression {
    int n_features, n_systems, n_each, n_cases, n_moved;
    bool is_dual, is_uniform;
    const Feature* features;
    const Moved* moved;
    const double* noise;    // (n_chains, n_systems, n_cases, or 1 if is_uniform)
    const double* prior;    // (n_chains, n_systems, n_features)
    const double* targets;  // (n_systems, n_each, n_cases), and for each chain if targets_step > 0
    long targets_step;
};

// sgemm or dgemm of BLAS, with Fortran's conventions.
typedef void (*Gemm)(
    const char*, const char*, const int*, const int*, const int*, const void*, const void*, const int*,
    const void*, const int*, const void*, void*, const int*);

// What one call works on. Real numbers are float or double as the kernel called.
struct Job {
    const Network* network;
    Gemm gemm;  // null where no link uses it
    int n_partitions;
    const Partition* partitions;
    int n_cases;
    int largest_block;  // packs
    Regression regression;

    int n_chains, n_steps;
    const long long* order;     // (n_chains, n_partitions), or null for full gradients
    const void* position;       // (n_chains, n_parameters)
    const void* momentum;       // the same
    const void* stepsizes;      // the same
    const double* precisions;   // (n_chains, n_parameters)
    const double* noise;        // (n_chains, n_targets), or null
    const double* powers;       // (n_chains,): inverse temperatures
    const double* targets;      // (n_outputs, n_cases), and for each chain if targets_step > 0
    const double* weights;      // (n_targets, n_cases), and for each chain if weights_step > 0; null without
    long targets_step, weights_step;

    void* new_position;         // (n_chains, n_parameters)
    void* new_momentum;         // the same
    double* prior_energy;       // (n_chains,): -log prior of the parameters
    double* terms;              // (n_chains,): the likelihood's terms, summed
};

// The kernels of one instruction set.
struct Kernels {
    const char* name;
    int float_width, double_width;
    void (*run_float)(const Job&);
    void (*run_double)(const Job&);
};

const Kernels& kernels_plain();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

}  // namespace rayfbnn
#endif
