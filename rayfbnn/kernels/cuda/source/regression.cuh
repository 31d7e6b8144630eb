// Whole trajectories with the output layer's parameters integrated out by a linear regression of the targets on the
// units before them; model/regression.py has the formulas. There is one thread block for each chain.
//
// The source that follows this one has the form of the regression, with matrices of the features or of the cases.

constexpr int N_ALL = N_SYSTEMS * N_EACH;  // number of targets
constexpr int N_KEPT = N_PARAMETERS - N_MOVED;

// In shared memory, behind the tiles, lie a row of ones, in reals, and then the arrays that the form of the regression
// needs.
constexpr int ONES = rounded((END_OF_SQUARES * 8 + int(sizeof(real)) - 1) / int(sizeof(real)));
constexpr int END_OF_ONES = ONES + PITCH;

// The numbers of one chain.
struct Regression {
  const double* noise;    // T (N_SYSTEMS, n_cases), or (N_SYSTEMS,) if T is the same for all cases
  const double* prior;    // S (N_SYSTEMS, N_FEATURES), without the factors exp(x)
  const double* targets;  // (N_ALL, n_cases)
  const real* inputs;
  int n_cases;

  __device__ __forceinline__ double noise_of(int system, int number) const {
    if constexpr (IS_UNIFORM) return noise[system];
    return noise[(long long)system * n_cases + number];
  }
  __device__ __forceinline__ double target(int which, int number) const {
    return targets[(long long)which * n_cases + number];
  }
};

// The functions of each form. set_gradient computes the gradient without the prior of the parameters that are kept, and
// ends with a barrier. energy_of is the thread's share of the energy of the regression and of the coordinates x, at the
// position of the last gradient.
__device__ __forceinline__ void set_gradient(real* shared, const Regression& given);
__device__ __forceinline__ double energy_of(real* shared, const Regression& given);

__device__ __forceinline__ double* doubles_of(real* shared) { return reinterpret_cast<double*>(shared); }

// Features come in runs, whose rows follow each other in shared memory.
template <int RUN> __host__ __device__ constexpr int place_of_run() {
  return run_layer(RUN) < 0 ? ONES : values_of(run_layer(RUN)) + run_row(RUN) * PITCH;
}

// Where a feature's row begins.
__device__ __forceinline__ int place_of(int feature) {
  int place = 0;
  each<0, N_RUNS>([&](auto run) {
    constexpr int RUN = decltype(run)::value;
    if (feature >= run_start(RUN)) place = place_of_run<RUN>() + (feature - run_start(RUN)) * PITCH;
  });
  return place;
}

// Calls f(feature, where its row begins) for all features.
template <class F> __device__ __forceinline__ void each_feature(F f) {
  each<0, N_RUNS>([&](auto run) {
    constexpr int RUN = decltype(run)::value;
#pragma unroll 4
    for (int k = 0; k < run_size(RUN); ++k) f(run_start(RUN) + k, place_of_run<RUN>() + k * PITCH);
  });
}

// S of a system's feature, with the factor exp(x) of a precision that moves.
__device__ __forceinline__ double precision_at(const real* shared, const Regression& given, int place) {
  double precision = given.prior[place];
  each<0, N_MOVED>([&](auto which) {
    constexpr int K = decltype(which)::value;
    const int feature = place % N_FEATURES;
    if (feature < moved_start(K) || feature >= moved_stop(K)) return;
    precision *= exp(bounded(shared[N_KEPT + K]));
  });
  return precision;
}

// Computes the gradient by the coordinates x from the derivatives by log S of each feature.
__device__ __forceinline__ void set_moved_gradient(real* shared, const double* slopes) {
  each<0, N_MOVED>([&](auto which) {
    constexpr int K = decltype(which)::value;
    if (threadIdx.x != K) return;
    double sum = log_gamma_slope(moved_half(K), exp(double(shared[N_KEPT + K])) / moved_mean(K));
    for (int f = moved_start(K); f < moved_stop(K); ++f) sum += slopes[f];
    shared[GRADIENT + N_KEPT + K] = real(sum);
  });
}

// -log density of the coordinates x, minus log|S| / 2 for each of TARGETS targets as far as it depends on x.
template <int TARGETS> __device__ __forceinline__ double energy_of_moved(const real* shared) {
  double energy = 0;
  each<0, N_MOVED>([&](auto which) {
    constexpr int K = decltype(which)::value;
    const double x = shared[N_KEPT + K];
    energy += log_gamma_term(moved_half(K), exp(x) / moved_mean(K), x);
    energy -= 0.5 * TARGETS * (moved_stop(K) - moved_start(K)) * bounded(x);
  });
  return energy;
}

// Registers are limited to let as many thread blocks run on a multiprocessor as its shared memory holds (228 KiB; each
// block takes 1 KiB more than it requests), up to 24 warps, or 16 where more would spill. The robot arm in
// float32 has 12 thread blocks without spills. This has not been timed yet.
constexpr int MOST_THREADS = sizeof(real) == 4 && THREADS <= 64 ? 768 : 512;
constexpr int BLOCKS_AT_ONCE = least(MOST_THREADS / THREADS, 228 * 1024 / (SHARED_BYTES + 1024));

// The data of a regression. noise, prior and targets are those of Regression for each chain; the targets of chains are
// target_stride apart. The energy's terms are minus the energy of the regression and of the coordinates x, without terms
// that are constant along a trajectory.
#define DATA_ARGUMENTS                                                                                              \
  const double *precisions, const double *noise, const double *prior, const real *inputs, const double *targets,    \
      long long target_stride, int n_cases

struct ChainData {
  const double* precisions;
  Regression regression;

  __device__ __forceinline__ double potential(const Energy& energy, double constant) const {
    return energy.prior - energy.terms + constant;
  }
};

#define DATA_OF(chain)                                                                                              \
  ChainData {                                                                                                       \
    precisions + (chain) * N_PARAMETERS, {                                                                          \
      noise + (chain) * N_SYSTEMS * (IS_UNIFORM ? 1 : n_cases), prior + (chain) * N_SYSTEMS * N_FEATURES,           \
          targets + (chain) * target_stride, inputs, n_cases                                                        \
    }                                                                                                               \
  }

__device__ __forceinline__ void run_piece(const Piece& piece, const ChainData& data, Energy& energy) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  Own own;
  load(shared, own, piece, data.precisions);
  for (int place = threadIdx.x; place < TILE; place += THREADS) shared[ONES + place] = 1;
  __syncthreads();

  for (int step = 0; step <= piece.n_steps; ++step) {
    set_squares(shared, own);
    set_gradient(shared, data.regression);
    kick_and_drift(shared, own, step, piece.n_steps);
    __syncthreads();
  }

  store(shared, own, piece);
  energy.prior += prior_energy_here(shared, own);
  energy.terms -= energy_of(shared, data.regression);
}
