// The steps of a large network's pass between the matrix products of network_pass.py. Biases are not part of the
// products, because their rows would not be aligned: 785 numbers of float32 are not a multiple of 16 bytes.

// A layer's kernels take a row for each unit of each chain, with the unit's numbers at all n cases of a tile. A thread
// block has some cases of one row, so it reads the unit's parameters once. It has at most THREADS threads, either whole
// warps or a single thread.
constexpr int CASES_OF_A_THREAD = 4;

template <int LAYER, bool is_exact>
__device__ __forceinline__ void activate_row(const real* position, real* u, real* slope, int n) {
  typedef LaneFor<is_exact> L;
  constexpr int A = activation_of(LAYER);
  static_assert(A >= IDENTITY && A <= SIN, "an activation that arithmetic.hpp does not know");
  const int cases = CASES_OF_A_THREAD * blockDim.x, blocks = (n + cases - 1) / cases;
  const int row = blockIdx.x / blocks, unit = row % units_of(LAYER);
  const real* w = position + (long long)(row / units_of(LAYER)) * N_PARAMETERS;
  const real bias = bias_of<LAYER>(w, unit);
  real offset = 0;
  if constexpr (offset_of(LAYER) >= 0) offset = w[offset_of(LAYER) + unit];
  const int first = blockIdx.x % blocks * cases + threadIdx.x;
#pragma unroll
  for (int k = 0; k < CASES_OF_A_THREAD; ++k) {
    const int number = first + k * blockDim.x;
    if (number >= n) continue;
    const long long place = (long long)row * n + number;
    real kept;
    const real v = activate<L>(A, u[place] + bias, kept);
    u[place] = v + offset;
    if constexpr (!is_exact && stores_slopes(LAYER)) slope[place] = has_kept_slope(A) ? kept : slope_of<L>(A, v);
  }
}

// Replaces the summed inputs u of a hidden layer, which lack biases, by the values with offsets. Slopes are computed
// where they are stored. The shape of both is (n_chains, n_units, n).
extern "C" __global__ void activate_for_force(int layer, const real* position, real* u, real* slope, int n) {
  each<1, OUTPUT_LAYER>([&](auto number) {
    constexpr int LAYER = decltype(number)::value;
    if (layer == LAYER) activate_row<LAYER, false>(position, u, slope, n);
  });
}

extern "C" __global__ void activate_for_energy(int layer, const real* position, real* u, int n) {
  each<1, OUTPUT_LAYER>([&](auto number) {
    constexpr int LAYER = decltype(number)::value;
    if (layer == LAYER) activate_row<LAYER, true>(position, u, nullptr, n);
  });
}

// Sums a number of each thread over the block in a fixed order; thread 0 has the result.
__device__ __forceinline__ real sum_over_threads(real value) {
  if (blockDim.x == 1) return value;
  __shared__ real sums[THREADS / WARP];
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_THREADS, value, distance);
  __syncthreads();  // before sums of an earlier call are replaced
  if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
  __syncthreads();
  real total = 0;
  for (int warp = 0; warp < blockDim.x / WARP; ++warp) total += sums[warp];
  return total;
}

// Adds the sums of the block's threads for a unit to the gradient of its offset and biases. All threads call it, and
// one of them writes.
template <int LAYER>
__device__ __forceinline__ void add_sums(real* gradient, int unit, bool writes, real by_value, real by_input) {
  if constexpr (LAYER < OUTPUT_LAYER && offset_of(LAYER) >= 0) {
    by_value = sum_over_threads(by_value);
    if (writes) gradient[offset_of(LAYER) + unit] += by_value;
  }
  by_input = sum_over_threads(by_input);
  if (writes) add_to_biases<LAYER>(gradient, unit, by_input);
}

// One unit of one chain: its derivatives by values become those by summed inputs, and their sums over the tile's cases
// are added to the gradient of the unit's offset and biases.
template <int LAYER>
__device__ __forceinline__ void finish_row(const real* values, const real* slope, real* derivative, real* gradient,
                                           int n) {
  const int row = blockIdx.x, unit = row % units_of(LAYER);
  const long long begin = (long long)row * n;
  real by_value = 0, by_input = 0;
  for (int number = threadIdx.x; number < n; number += blockDim.x) {
    const long long place = begin + number;
    real here = derivative[place];
    by_value += here;
    if constexpr (LAYER < OUTPUT_LAYER) {
      if constexpr (stores_slopes(LAYER)) {
        here *= slope[place];
      } else {
        here *= slope_of<LaneFor<false>>(activation_of(LAYER), values[place]);
      }
      derivative[place] = here;
    }
    by_input += here;
  }
  real* of_chain = gradient + (long long)(row / units_of(LAYER)) * N_PARAMETERS;
  add_sums<LAYER>(of_chain, unit, threadIdx.x == 0, by_value, by_input);
}

// Finishes a layer's derivatives, (n_chains, n_units, n), with a thread block for each row. Those of the outputs are by
// summed inputs already, and only their sums are taken. `slope` is read only where slopes are stored.
extern "C" __global__ void finish_derivatives(int layer, const real* values, const real* slope, real* derivative,
                                              real* gradient, int n) {
  each<1, N_LAYERS>([&](auto number) {
    constexpr int LAYER = decltype(number)::value;
    if constexpr (units_of(LAYER) > 0) {
      if (layer == LAYER) finish_row<LAYER>(values, slope, derivative, gradient, n);
    }
  });
}

// Loads the outputs of one case, with biases; w are the parameters of its chain.
__device__ __forceinline__ void load_outputs(const real* place, const real* w, int n, real* v) {
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) v[o] = place[(long long)o * n] + bias_of<OUTPUT_LAYER>(w, o);
}

// Replaces the outputs by -factor d log likelihood / d outputs; the shape of factor is (n_chains,).
extern "C" __global__ void slopes_of_outputs(real* outputs, const double* factor, OUTPUT_ARGUMENTS) {
  const long long here = THIS_THREAD, chain = here / n;
  const int number = int(here % n);
  if (chain >= n_chains) return;
  const Targets targets = TARGETS_OF(chain);
  real* place = outputs + chain * N_OUTPUTS * n + number;
  real v[MOST_OUTPUTS];
  load_outputs(place, position + chain * N_PARAMETERS, n, v);
  slopes_of_case(v, targets, begin + number, real(factor[chain]));
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) place[(long long)o * n] = v[o];
}

// The log likelihood of each case; the shape of terms is (n_chains, n).
extern "C" __global__ void terms_of_outputs(const real* outputs, double* terms, OUTPUT_ARGUMENTS) {
  const long long here = THIS_THREAD, chain = here / n;
  const int number = int(here % n);
  if (chain >= n_chains) return;
  const Targets targets = TARGETS_OF(chain);
  const real* place = outputs + chain * N_OUTPUTS * n + number;
  real v[MOST_OUTPUTS];
  load_outputs(place, position + chain * N_PARAMETERS, n, v);
  terms[here] = terms_of_case(v, targets, begin + number);
}

// Adds the prior's gradient to that of the data, with one thread for each of the n_chains * N_PARAMETERS parameters.
extern "C" __global__ void add_prior(const real* position, const double* precisions, real* gradient, int n_chains) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * N_PARAMETERS) return;
  gradient[here] += real(prior_slope(position[here], precisions[here], prior_alpha_of(int(here % N_PARAMETERS))));
}

// The prior's energy of each parameter, with one thread for each.
extern "C" __global__ void prior_energies(
    const real* position, const double* precisions, double* energy, int n_chains) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * N_PARAMETERS) return;
  energy[here] = prior_term(position[here], precisions[here], prior_alpha_of(int(here % N_PARAMETERS)));
}

// Changes the momentum and then the position in a leapfrog step, by shares of the n stepsizes, with one thread for each.
extern "C" __global__ void kick_and_drift(real* position, real* momentum, const real* gradient, const real* stepsizes,
                                          double kick, double drift, long long n) {
  const long long here = THIS_THREAD;
  if (here >= n) return;
  const real moved = momentum[here] - real(kick) * stepsizes[here] * gradient[here];
  momentum[here] = moved;
  if (drift != 0) position[here] += real(drift) * stepsizes[here] * moved;
}
