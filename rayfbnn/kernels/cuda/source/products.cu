// The steps of a large network's pass between the matrix products of network_pass.py. Biases are not part of the
// products, whose rows would otherwise not be aligned: 785 numbers of float32 are no multiple of 16 bytes.

// If the outputs are integrated out, N_OUTPUTS is 0 and no kernel with an array of outputs is called.
constexpr int MOST_OUTPUTS = N_OUTPUTS > 0 ? N_OUTPUTS : 1;

#define THIS_THREAD ((long long)blockIdx.x * blockDim.x + threadIdx.x)

// A layer's kernels take a row for each unit of each chain, with the unit's numbers at all n cases of a tile. A thread
// block has some cases of one row, so that what belongs to the unit is read once. It has at most THREADS threads, whole
// warps or a single thread.
constexpr int CASES_OF_A_THREAD = 4;

// The sum of a unit's biases; w are the parameters of its chain.
template <int LAYER> __device__ __forceinline__ real bias_of(const real* w, int unit) {
  real bias = 0;
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER && link_rows(K) > link_units(K))
      bias += w[link_start(K) + link_units(K) * units_of(LAYER) + unit];
  });
  return bias;
}

// True if a layer's slopes are stored; otherwise they follow from the values. pass_kernels.py has the same rule.
__host__ __device__ constexpr bool stores_slopes(int layer) {
  return has_kept_slope(activation_of(layer)) || offset_of(layer) >= 0;
}

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

// Adds what the threads of the block have summed for a unit to the gradient of its offset and biases. All threads call
// it, and one of them writes.
template <int LAYER>
__device__ __forceinline__ void add_sums(real* gradient, int unit, bool writes, real by_value, real by_input) {
  if constexpr (LAYER < OUTPUT_LAYER && offset_of(LAYER) >= 0) {
    by_value = sum_over_threads(by_value);
    if (writes) gradient[offset_of(LAYER) + unit] += by_value;
  }
  by_input = sum_over_threads(by_input);
  if (!writes) return;
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER && link_rows(K) > link_units(K))
      gradient[link_start(K) + link_units(K) * units_of(LAYER) + unit] += by_input;
  });
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

// The outputs have the shape (n_chains, N_OUTPUTS, n), at the cases begin .. begin + n - 1, and lack biases. Targets are
// those of all n_cases.
#define OUTPUT_ARGUMENTS                                                                                    \
  const real *position, const double *noise, const real *rows, const double *exact, const double *weights,    \
      long long row_stride, long long weight_stride, int n_chains, int n_cases, int begin, int n

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

// --- few outputs --------------------------------------------------------------------------------------------
//
// Where all links into the outputs come from the last hidden layer and the outputs are few, two kernels take the place
// of its activation, of three products and of what is between them. The products would be of matrices with few rows,
// which fill a part of the device only.

constexpr int LAST = OUTPUT_LAYER - 1;

// The link from the last hidden layer to the outputs.
__host__ __device__ constexpr int last_link() {
  int found = 0;
  for (int k = 0; k < N_LINKS; ++k) {
    if (link_destination(k) == OUTPUT_LAYER && link_units(k) > 0) found = k;
  }
  return found;
}

constexpr int TO_OUTPUTS = N_LINKS > 0 ? link_start(last_link()) : 0;
// Units of a thread block; their weights, and the sums for these, are in registers.
constexpr int UNITS_AT_ONCE = N_OUTPUTS * int(sizeof(real)) <= 40 ? 4 : 2;

// Replaces the summed inputs u of the last hidden layer, which lack biases, by its values with offsets, computes its
// slopes where they are stored, and writes -factor d log likelihood / d outputs. There is one thread for each case.
extern "C" __global__ void slopes_of_few_outputs(real* u, real* slope, real* outputs, const double* factor,
                                                 OUTPUT_ARGUMENTS) {
  if constexpr (LAST > 0 && N_OUTPUTS > 0) {
    typedef LaneFor<false> L;
    constexpr int A = activation_of(LAST), N_UNITS = units_of(LAST);
    const long long here = THIS_THREAD, chain = here / n;
    const int number = int(here % n);
    if (chain >= n_chains) return;
    const real* w = position + chain * N_PARAMETERS;
    real v[MOST_OUTPUTS];
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) v[o] = bias_of<OUTPUT_LAYER>(w, o);
#pragma unroll 4
    for (int unit = 0; unit < N_UNITS; ++unit) {
      const long long place = (chain * N_UNITS + unit) * n + number;
      real kept;
      real value = activate<L>(A, u[place] + bias_of<LAST>(w, unit), kept);
      if constexpr (stores_slopes(LAST)) slope[place] = has_kept_slope(A) ? kept : slope_of<L>(A, value);
      if constexpr (offset_of(LAST) >= 0) value += w[offset_of(LAST) + unit];
      u[place] = value;
#pragma unroll
      for (int o = 0; o < N_OUTPUTS; ++o) v[o] += w[TO_OUTPUTS + unit * N_OUTPUTS + o] * value;
    }
    const Targets targets = TARGETS_OF(chain);
    slopes_of_case(v, targets, begin + number, real(factor[chain]));
    real* to = outputs + chain * N_OUTPUTS * n + number;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) to[(long long)o * n] = v[o];
  }
}

// Computes the derivatives by the summed inputs of the last hidden layer from those by the outputs, and adds to the
// gradient of its biases, of its offsets, and of the weights to the outputs. A thread block has UNITS_AT_ONCE units of
// one chain at all n cases.
extern "C" __global__ void derivatives_by_few_outputs(const real* position, const real* values, const real* slope,
                                                      const real* by_outputs, real* derivative, real* gradient,
                                                      int n) {
  if constexpr (LAST > 0 && N_OUTPUTS > 0) {
    constexpr int N_UNITS = units_of(LAST), BLOCKS = (N_UNITS + UNITS_AT_ONCE - 1) / UNITS_AT_ONCE;
    const long long chain = blockIdx.x / BLOCKS;
    const int first = blockIdx.x % BLOCKS * UNITS_AT_ONCE;
    const real* w = position + chain * N_PARAMETERS + TO_OUTPUTS;
    real weight[UNITS_AT_ONCE][MOST_OUTPUTS], sum[UNITS_AT_ONCE][MOST_OUTPUTS];
    real by_value[UNITS_AT_ONCE], by_input[UNITS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < UNITS_AT_ONCE; ++k) {
      by_value[k] = by_input[k] = 0;
#pragma unroll
      for (int o = 0; o < N_OUTPUTS; ++o) {
        weight[k][o] = first + k < N_UNITS ? w[(first + k) * N_OUTPUTS + o] : real(0);
        sum[k][o] = 0;
      }
    }
    for (int number = threadIdx.x; number < n; number += blockDim.x) {
      real by_output[MOST_OUTPUTS];
#pragma unroll
      for (int o = 0; o < N_OUTPUTS; ++o) by_output[o] = by_outputs[(chain * N_OUTPUTS + o) * n + number];
#pragma unroll
      for (int k = 0; k < UNITS_AT_ONCE; ++k) {
        if (first + k >= N_UNITS) continue;
        const long long place = (chain * N_UNITS + first + k) * n + number;
        const real value = values[place];
        real here = 0;
#pragma unroll
        for (int o = 0; o < N_OUTPUTS; ++o) {
          here += weight[k][o] * by_output[o];
          sum[k][o] += value * by_output[o];
        }
        by_value[k] += here;
        if constexpr (stores_slopes(LAST)) {
          here *= slope[place];
        } else {
          here *= slope_of<LaneFor<false>>(activation_of(LAST), value);
        }
        by_input[k] += here;
        derivative[place] = here;
      }
    }
    real* of_chain = gradient + chain * N_PARAMETERS;
#pragma unroll
    for (int k = 0; k < UNITS_AT_ONCE; ++k) {
      const int unit = first + k;
      const bool is_unit = unit < N_UNITS && threadIdx.x == 0;
      add_sums<LAST>(of_chain, unit, is_unit, by_value[k], by_input[k]);
#pragma unroll
      for (int o = 0; o < N_OUTPUTS; ++o) {
        const real total = sum_over_threads(sum[k][o]);
        if (is_unit) of_chain[TO_OUTPUTS + unit * N_OUTPUTS + o] += total;
      }
    }
  }
}
