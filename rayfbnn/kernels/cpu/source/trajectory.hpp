// The records that pass between the Python module and the trajectories, which are compiled once per instruction set.
#ifndef RAYFBNN_TRAJECTORY_HPP
#define RAYFBNN_TRAJECTORY_HPP

#include <stddef.h>

namespace rayfbnn {

// Thrown by the kernels of every instruction set if there is no memory left.
struct OutOfMemory {};

// A matrix of weights, and perhaps biases, from one layer to another, as kernels/network_plan.py describes it. A link is_large
// if its weights and their gradient do not stay in the first-level cache. A large link uses_blas if BLAS computes its
// products.
struct Link {
    int source, destination, start, n_units, n_destinations;
    bool has_biases, is_large, uses_blas;
};

// Consecutive parameters with one kind of prior.
struct Segment {
    int start, stop;
    double alpha;
};

// Gaussian parameters start .. stop - 1 whose common precision has a Gamma prior and is integrated out. Minus their log
// density is shape/2 log(rate + sum a w**2). The factors a take the place of the parameters' precisions.
struct Integrated {
    int start, stop;
    double shape, rate;
};

// The network that kernels/network_plan.py describes. Its links are ordered by destination.
struct Network {
    int n_layers;  // inputs and outputs included
    const int* units;
    const int* activations;  // of each layer; the entries of inputs and outputs are not read
    const int* offsets;  // of each layer: where its offsets begin in the parameters, or -1 without offsets
    int n_links;
    const Link* links;
    int n_segments;
    const Segment* segments;
    int n_integrated;
    const Integrated* integrated;
    int model;
    double alpha;
    int n_targets, n_rows, n_parameters;  // n_rows: numbers of a case that say its targets

    // True if precisions govern the targets: those of noise (codes 0 and 1 of network_plan.py) or of dispersion (7).
    bool has_taus() const { return model <= 1 || model == 7; }
};

// A place in the run's streams: seed, and the counter's words that all numbers of a request have in common.
struct StreamPlace {
    unsigned seed, use, operation, iteration;
    const unsigned long long* chains;  // (n_chains,): the chains' numbers in the run
};

// Steps of dynamics with friction instead of leapfrog steps: mcmc/sghmc.py. With stepsizes s and normal numbers n,
//   q += first s p;  p = persistence p + noise n;  q += second s p;  p -= kick s g(q).
// The normal numbers of step k have the index that `normals` holds plus k.
struct Friction {
    double first, second, persistence, noise, kick;
    StreamPlace normals;
};

// Job::n_steps steps of Bayes by Backprop instead of leapfrog steps; approximate/variational.py describes the arrays.
// The chains are those of the starts. Job::prior_energy and Job::terms are means over a step's draws,
// (n_steps, n_chains).
struct Variational {
    int n_draws;
    bool is_antithetic;
    double first_decay, second_decay, small;
    const double* rates;                     // (n_steps, 3): the rate, and the corrections of the two moments
    double *mean, *rho;                      // (n_chains, n_parameters), before and after
    double *first, *second;                  // (n_chains, 2 n_parameters), before and after
    double* log_widths;                      // (n_steps, n_chains): the sum of the logarithms of sigma before each step
    StreamPlace normals;                     // of the first step; each step has its own iteration
};

// The cases first .. first + n_cases - 1 of one partition. They fill n_packs packs, which are cut into blocks.
//
// The inputs of block b begin at inputs + n_inputs * block_starts[b] * width, with the shape (n_inputs, packs of the
// block, width). The last pack is filled up with copies of the last case. If `inputs` is null, a block is laid out in
// this way from Job::rows each time it becomes the current one.
struct Partition {
    int first, n_cases, n_packs, n_blocks;
    const int* block_starts;  // (n_blocks + 1,) in packs
    const void* inputs;
};

// A feature of the regression: one unit of a layer, with its offset, at all cases. If `row` is -1, the feature is one.
struct Feature {
    int layer, row;
};

// Features first .. stop - 1, with prior precisions multiplied by exp(x). Here x is a coordinate of the position that
// is distributed as the log of a Gamma variable with shape `half` and mean `mean`.
struct Moved {
    int first, stop;
    double half, mean;
};

// A linear regression of the targets on features with the coefficients integrated out; model/regression.py has
// the formulas. There is no regression if n_features is 0. The last n_moved parameters are the coordinates of `moved`.
// The matrices are those of the cases if is_dual, and otherwise those of the features.
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

// Sums over the networks of Job::n_chains draws at the cases, instead of steps; reduce/block.hpp. Sums are added to what
// their arrays have, whose last axis is the cases.
//
// A case of piecewise survival has n_cells cells, at which the networks are evaluated. The cells of GROUP cases are
// together: those of the first piece of all of them, then those of the second. The number of cases is then a multiple
// of GROUP, and `cells` here stands for all cells in this order.
struct Reduction {
    enum Kind { OUTPUTS, MOMENTS, SCORES, DISTRIBUTION, MASS };
    static constexpr int GROUP = 16;  // the places of the widest pack
    Kind kind;
    int n_cells = 1;
    const double* starts = nullptr;  // (n_cells,): the times when the pieces of a hazard start
    void* outputs = nullptr;  // (n_draws, n_outputs, cells)

    // Moments: of a value's mean m given a draw, m - shift by piece, its square, and the variance of the noise, or what
    // dispersion adds to that of a count.
    int n_values = 0;
    const int* pieces = nullptr;    // (n_draws,)
    const double* shift = nullptr;  // (n_values, n_cases)
    double* sums = nullptr;         // (n_pieces, n_values, n_cases); of a distribution (3, n_guesses, n_targets, n_cases)
    double *squares = nullptr, *variances = nullptr;  // (n_values, n_cases)

    // Scores: the density of the targets of each case.
    const double *noise = nullptr, *normalisers = nullptr;  // (n_draws, n_targets); noise is null without taus
    const double *targets = nullptr, *weights = nullptr;    // (n_rows, cells) and (n_targets, n_cases), or null
    double *maxima = nullptr, *scaled = nullptr;            // (n_cases,)

    // Distributions: F, f and f' at guesses; of counts F and the probability f. Mass: the probability alone, where sums
    // are (n_guesses, n_targets, n_cases).
    const double* sigmas = nullptr;  // (n_draws, n_targets), of real targets
    const double* shapes = nullptr;  // (n_draws, n_targets, N_OF_SHAPE), of counts with dispersion; of moments too
    int n_guesses = 0;
    const void* guesses = nullptr;  // (n_guesses, n_targets, n_cases), in double for counts and times
    // (n_guesses, n_targets, n_cases), of counts k: log(k), and the probability of k if the rate is k; both for k > 0.
    const double *log_counts = nullptr, *peaks = nullptr;
    // (n_places, 4), of t noise: 1 - F by cubics in the place within intervals of u = asinh(z / sqrt(df)) >= 0 that are
    // 1 / table_rate wide.
    const double* table = nullptr;
    int n_places = 0;
    double table_rate = 0;
};

// The functions sgemm and dgemm of BLAS, with Fortran's conventions.
typedef void (*Gemm)(
    const char*, const char*, const int*, const int*, const int*, const void*, const void*, const int*,
    const void*, const int*, const void*, void*, const int*);

// The arrays of one call. A `void*` is an array of float or double, according to the function that is called.
struct Job {
    const Network* network;
    Gemm gemm;  // null where no link uses it
    int n_partitions;
    const Partition* partitions;
    int n_cases;
    int largest_block;  // packs
    const void* rows;   // (n_inputs, n_cases), or null where the partitions have inputs of their own
    // The random order of all cases in the first pass, or null if all chains have the same cases. The batch of a step
    // is a piece of it. Each later pass has its own iteration. A pass has n_batches batches, step k takes batch
    // first_batch + k of all passes, and n_cases is the largest size of a batch. There is then one partition, and its
    // cases come from `records`.
    const StreamPlace* shuffles;
    int n_batches;
    long first_batch;
    // (n_all, record_size), and for each chain if records_step > 0: the inputs, targets and weights of each case, filled
    // up to a multiple of four numbers.
    const void* records;
    long record_size, records_step;
    int n_all;  // columns of targets and weights: n_cases where there are no batches
    Regression regression;

    int n_chains;
    int n_steps;                // or -1: one kick by half the stepsizes, and no energies
    const long long* order;     // (n_chains, n_partitions), or null for full gradients
    const void* position;       // (n_chains, n_parameters)
    const void* momentum;       // (n_chains, n_parameters)
    const void* stepsizes;      // (n_chains, n_parameters)
    const double* precisions;   // (n_chains, n_parameters)
    const double* noise;        // (n_chains, n_targets), or null
    const double* powers;       // (n_chains,): inverse temperatures
    const double* targets;      // (n_rows, n_all), and for each chain if targets_step > 0
    const double* weights;      // (n_targets, n_all), and for each chain if weights_step > 0; null without
    long targets_step, weights_step;
    const Friction* friction;        // or null
    const Variational* variational;  // or null
    const Reduction* reduction;      // or null

    void* new_position;         // (n_chains, n_parameters)
    void* new_momentum;         // (n_chains, n_parameters)
    double* prior_energy;       // (n_chains,): -log prior of the parameters
    double* terms;              // (n_chains,): the likelihood's terms, summed
};

// The functions of one instruction set, and how many numbers its packs hold.
struct Kernels {
    const char* name;
    int float_width, double_width;
    void (*run_float)(const Job&);
    void (*run_double)(const Job&);
    void (*reduce_float)(const Job&);  // for jobs with a reduction
    void (*reduce_double)(const Job&);
    // See steps/normals.hpp and steps/shuffles.hpp.
    void (*write_normals)(const StreamPlace&, int chain, long step, long n, float* to);
    void (*write_shuffles)(const StreamPlace&, int n_chains, int n_passes, long n, int* to);
};

const Kernels& kernels_plain();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

}  // namespace rayfbnn
#endif
