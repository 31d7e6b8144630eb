// The leapfrog steps of a chain by its thread block. Each parameter belongs to one thread, which has its momentum,
// stepsize and prior in registers. Positions and the gradient are in shared memory (tiles.cuh).
//
// Common precisions may be integrated out of the prior. Minus the log density of such a group of parameters is
// shape/2 log(rate + sum a w**2), where the factors a take the place of the precisions.

constexpr int OWN = (N_PARAMETERS + THREADS - 1) / THREADS;  // parameters of one thread
constexpr int WARPS = THREADS / WARP;

// In shared memory behind the tiles, in doubles: each warp's share of the sum of a w**2, group after group.
constexpr int SQUARES = (END_OF_TILES * int(sizeof(real)) + 7) / 8;
constexpr int END_OF_SQUARES = SQUARES + N_INTEGRATED * WARPS;
static_assert(sizeof(double) * END_OF_SQUARES <= SHARED_BYTES && 2 * sizeof(double) * THREADS <= SHARED_BYTES,
              "launch_plan.py asks for less shared memory than the block needs");

struct Own {
  real momentum[OWN], stepsize[OWN];
  double tau[OWN];  // the precisions, or the factors a where the common precision is integrated out
};

// Calls f(i, parameter) for each parameter of the thread.
template <class F> __device__ __forceinline__ void each_own(F f) {
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int parameter = threadIdx.x + i * THREADS;
    if (parameter < N_PARAMETERS) f(i, parameter);
  }
}

// Loads a chain's numbers at the beginning of a piece. A barrier must follow.
__device__ __forceinline__ void load(real* shared, Own& own, const Piece& piece, const double* precisions) {
  each_own([&](int i, int parameter) {
    shared[parameter] = piece.position[parameter];
    shared[GRADIENT + parameter] = 0;
    own.momentum[i] = piece.momentum[parameter];
    own.stepsize[i] = piece.stepsize(parameter);
    own.tau[i] = precisions[parameter];
  });
}

__device__ __forceinline__ void store(const real* shared, const Own& own, const Piece& piece) {
  each_own([&](int i, int parameter) {
    piece.end_position[parameter] = shared[parameter];
    piece.end_momentum[parameter] = own.momentum[i];
  });
}

template <int GROUP> __device__ __forceinline__ bool is_integrated(int parameter) {
  return parameter >= integrated_start(GROUP) && parameter < integrated_stop(GROUP);
}

// Computes the sums of a w**2 at the position, warp by warp. A barrier must follow.
__device__ __forceinline__ void set_squares(real* shared, const Own& own) {
  each<0, N_INTEGRATED>([&](auto group) {
    constexpr int GROUP = decltype(group)::value;
    double sum = 0;
    each_own([&](int i, int parameter) {
      const double w = shared[parameter];
      if (is_integrated<GROUP>(parameter)) sum += own.tau[i] * w * w;
    });
    sum = sum_over_warp(sum);
    double* sums = reinterpret_cast<double*>(shared) + SQUARES + GROUP * WARPS;
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
  });
}

// rate + sum a w**2
template <int GROUP> __device__ __forceinline__ double rate_of(const real* shared) {
  const double* sums = reinterpret_cast<const double*>(shared) + SQUARES + GROUP * WARPS;
  double rate = integrated_rate(GROUP);
  for (int warp = 0; warp < WARPS; ++warp) rate += sums[warp];
  return rate;
}

// The kick by the gradient in shared memory, and the drift to the next position, of the thread's own parameters.
__device__ __forceinline__ void kick_and_drift(real* shared, Own& own, int number, int last) {
  const bool is_end = number == 0 || number == last;
  each_own([&](int i, int parameter) {
    double tau = own.tau[i];
    each<0, N_INTEGRATED>([&](auto group) {
      constexpr int GROUP = decltype(group)::value;
      if (is_integrated<GROUP>(parameter)) tau *= integrated_factor(rate_of<GROUP>(shared), integrated_shape(GROUP));
    });
    const real gradient =
        shared[GRADIENT + parameter] + real(prior_slope(shared[parameter], tau, prior_alpha_of(parameter)));
    shared[GRADIENT + parameter] = 0;
    own.momentum[i] -= (is_end ? own.stepsize[i] / 2 : own.stepsize[i]) * gradient;
    if (number < last) shared[parameter] += own.stepsize[i] * own.momentum[i];
  });
}

// The thread's share of the prior's energy.
__device__ __forceinline__ double prior_energy_here(const real* shared, const Own& own) {
  double energy = 0;
  each_own([&](int i, int parameter) {
    double tau = own.tau[i];
    each<0, N_INTEGRATED>([&](auto group) {
      if (is_integrated<decltype(group)::value>(parameter)) tau = 0;
    });
    energy += prior_term(shared[parameter], tau, prior_alpha_of(parameter));
  });
  each<0, N_INTEGRATED>([&](auto group) {
    constexpr int GROUP = decltype(group)::value;
    if (threadIdx.x == 0) energy += integrated_term(rate_of<GROUP>(shared), integrated_shape(GROUP));
  });
  return energy;
}

// The functions of pieces.cuh where a chain has a thread block. A barrier must come before sum_over_chain.
constexpr int CHAIN_THREADS = THREADS;

__device__ __forceinline__ long long chain_here() { return blockIdx.x; }
__device__ __forceinline__ int thread_of_chain() { return threadIdx.x; }

template <class F> __device__ __forceinline__ void each_parameter(F f) {
  each_own([&](int, int parameter) { f(parameter); });
}

__device__ __forceinline__ void sum_over_chain(Energy& energy) {
  DYNAMIC_SHARED_MEMORY(memory);
  double* sums = reinterpret_cast<double*>(memory);  // nothing in shared memory is needed any more
  sums[threadIdx.x] = energy.terms;
  sums[THREADS + threadIdx.x] = energy.prior;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int thread = 1; thread < THREADS; ++thread) {
      energy.terms += sums[thread];
      energy.prior += sums[THREADS + thread];
    }
  }
}
