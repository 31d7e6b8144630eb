// The pass from the last hidden layer to the outputs and back, for few outputs and links from this layer alone. It
// replaces an activation, three products and the steps between them. The products would be of matrices with few rows,
// which fill only a part of the device.
//
// A thread block takes chunks of WARP cases of one chain, one for each lane of its warps, which share the units among
// them. The values of a chunk are in shared memory: the summed inputs are read once, and the derivatives overwrite
// them. Sums over cases stay with the block until its last chunk. Another kernel then adds the sums of a chain's
// blocks, in a fixed order.

constexpr int LAST = OUTPUT_LAYER - 1, N_UNITS = units_of(LAST), WARPS = THREADS / WARP;
constexpr int QUAD = 4;             // numbers that a thread loads at a time
constexpr int PITCH = WARP + QUAD;  // length of a row of cases; with one quad more, rows start in different banks

struct __align__(16) Quad {
  real at[QUAD];
};

__device__ __forceinline__ const Quad& quad(const real* place) { return *reinterpret_cast<const Quad*>(place); }

// The link from the last hidden layer to the outputs.
__host__ __device__ constexpr int last_link() {
  int found = 0;
  for (int k = 0; k < N_LINKS; ++k) {
    if (link_destination(k) == OUTPUT_LAYER && link_units(k) > 0) found = k;
  }
  return found;
}

constexpr int TO_OUTPUTS = link_start(last_link());
constexpr bool HAS_OFFSETS = offset_of(LAST) >= 0;

// The places in shared memory, in reals. The row of a unit's numbers has its weights to the outputs, its bias and its
// offset. Behind the values of the units comes a row of ones, whose weights are the biases of the outputs.
constexpr int BIAS = N_OUTPUTS, OFFSET = N_OUTPUTS + 1, WIDTH = (N_OUTPUTS + 2 + QUAD - 1) / QUAD * QUAD;
constexpr int VALUES = N_UNITS * WIDTH;
constexpr int SLOPES = VALUES + (N_UNITS + 1) * PITCH;
constexpr int BY_OUTPUTS = SLOPES + (stores_slopes(LAST) ? N_UNITS * PITCH : 0);
constexpr int PARTS = BY_OUTPUTS + N_OUTPUTS * PITCH;  // of the outputs, by each warp's units
constexpr int TOTALS = PARTS + WARPS * N_OUTPUTS * WARP;
static_assert((TOTALS + 2 * N_UNITS) * sizeof(real) == SHARED_BYTES, "few_outputs.py counts other bytes");

// The sums of a block: the gradient of the weights to each output by units and ones, then by the summed inputs of each
// unit and by its value. A thread has the sums of SLOTS rows for AT_ONCE outputs.
constexpr int N_ROWS = N_UNITS + 1, BY_INPUTS = N_ROWS * N_OUTPUTS, BY_VALUES = BY_INPUTS + N_UNITS;
constexpr int N_SUMS = BY_VALUES + (HAS_OFFSETS ? N_UNITS : 0);
constexpr int GROUPS = (N_OUTPUTS + 4) / 5, AT_ONCE = (N_OUTPUTS + GROUPS - 1) / GROUPS;
constexpr int SLOTS = (N_ROWS * GROUPS + THREADS - 1) / THREADS;

__device__ __forceinline__ void load_unit(const real* shared, int unit, real (&numbers)[WIDTH]) {
#pragma unroll
  for (int place = 0; place < WIDTH; place += QUAD) {
    const Quad here = quad(shared + unit * WIDTH + place);
#pragma unroll
    for (int i = 0; i < QUAD; ++i) numbers[place + i] = here.at[i];
  }
}

__device__ __forceinline__ real sum_over_lanes(real value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_THREADS, value, distance);
  return value;
}

// Copies the numbers of the units to shared memory, and sets the ones and the totals.
__device__ __forceinline__ void prepare(real* shared, const real* w) {
  for (int place = threadIdx.x; place < N_UNITS * WIDTH; place += THREADS) {
    const int unit = place / WIDTH, column = place % WIDTH;
    real number = 0;
    if (column < N_OUTPUTS) number = w[TO_OUTPUTS + unit * N_OUTPUTS + column];
    if (column == BIAS) number = bias_of<LAST>(w, unit);
    if constexpr (HAS_OFFSETS) {
      if (column == OFFSET) number = w[offset_of(LAST) + unit];
    }
    shared[place] = number;
  }
  if (threadIdx.x < WARP) shared[VALUES + N_UNITS * PITCH + threadIdx.x] = 1;
  for (int place = threadIdx.x; place < 2 * N_UNITS; place += THREADS) shared[TOTALS + place] = 0;
}

// Computes the values of the warp's units at one case, and their share of the outputs.
__device__ __forceinline__ void forward(real* shared, const real* u, int n, bool is_case, int warp, int lane) {
  typedef LaneFor<false> L;
  constexpr int A = activation_of(LAST);
  real v[N_OUTPUTS];
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) v[o] = 0;
#pragma unroll 4
  for (int unit = warp; unit < N_UNITS; unit += WARPS) {
    real numbers[WIDTH], kept;
    load_unit(shared, unit, numbers);
    const real summed = is_case ? u[(long long)unit * n] : real(0);
    real value = activate<L>(A, summed + numbers[BIAS], kept);
    const int place = unit * PITCH + lane;
    if constexpr (stores_slopes(LAST)) shared[SLOPES + place] = has_kept_slope(A) ? kept : slope_of<L>(A, value);
    if constexpr (HAS_OFFSETS) value += numbers[OFFSET];
    shared[VALUES + place] = value;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) v[o] += numbers[o] * value;
  }
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) shared[PARTS + (warp * N_OUTPUTS + o) * WARP + lane] = v[o];
}

// Adds up the outputs of one case, and replaces them by -factor d log likelihood / d outputs; 0 where there is no case.
__device__ __forceinline__ void likelihood(real* shared, const real* w, const Targets& targets, int number, real factor,
                                           bool is_case, int lane) {
  real v[N_OUTPUTS];
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) {
    v[o] = bias_of<OUTPUT_LAYER>(w, o);
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) v[o] += shared[PARTS + (warp * N_OUTPUTS + o) * WARP + lane];
  }
  if (is_case) slopes_of_case(v, targets, number, factor);
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) shared[BY_OUTPUTS + o * PITCH + lane] = is_case ? v[o] : real(0);
}

// Writes the derivatives by the summed inputs of the warp's units at one case, and adds their sums over the lanes.
__device__ __forceinline__ void backward(real* shared, real* u, int n, bool is_case, int warp, int lane) {
  real by_output[N_OUTPUTS];
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) by_output[o] = shared[BY_OUTPUTS + o * PITCH + lane];
#pragma unroll 4
  for (int unit = warp; unit < N_UNITS; unit += WARPS) {
    real numbers[WIDTH], here = 0;
    load_unit(shared, unit, numbers);
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) here += numbers[o] * by_output[o];
    if constexpr (HAS_OFFSETS) {
      const real by_value = sum_over_lanes(here);
      if (lane == 0) shared[TOTALS + N_UNITS + unit] += by_value;
    }
    const int place = unit * PITCH + lane;
    if constexpr (stores_slopes(LAST)) {
      here *= shared[SLOPES + place];
    } else {
      here *= slope_of<LaneFor<false>>(activation_of(LAST), shared[VALUES + place]);
    }
    if (is_case) u[(long long)unit * n] = here;
    const real by_input = sum_over_lanes(here);
    if (lane == 0) shared[TOTALS + unit] += by_input;
  }
}

// Adds the chunk's share of the gradient of the weights to the outputs.
__device__ __forceinline__ void add_weights(const real* shared, real (&sum)[SLOTS][AT_ONCE]) {
#pragma unroll
  for (int k = 0; k < SLOTS; ++k) {
    const int slot = threadIdx.x + k * THREADS, row = slot % N_ROWS, first = slot / N_ROWS * AT_ONCE;
    if (slot >= N_ROWS * GROUPS) continue;
#pragma unroll 2
    for (int lane = 0; lane < WARP; lane += QUAD) {
      const Quad value = quad(shared + VALUES + row * PITCH + lane);
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (first + j >= N_OUTPUTS) continue;
        const Quad by_output = quad(shared + BY_OUTPUTS + (first + j) * PITCH + lane);
#pragma unroll
        for (int i = 0; i < QUAD; ++i) sum[k][j] += value.at[i] * by_output.at[i];
      }
    }
  }
}

// Replaces the summed inputs u (n_chains, N_UNITS, n) of the last hidden layer, which lack biases, by the derivatives by
// them, and writes the sums (n_chains, n_parts, N_SUMS) of n_parts blocks for each chain.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) through_outputs(
    real* u, real* sums, const double* factor, int n_parts, OUTPUT_ARGUMENTS) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  const long long chain = blockIdx.x / n_parts;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const real* w = position + chain * N_PARAMETERS;
  const Targets targets = TARGETS_OF(chain);
  real sum[SLOTS][AT_ONCE];
#pragma unroll
  for (int k = 0; k < SLOTS; ++k) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) sum[k][j] = 0;
  }
  prepare(shared, w);
  __syncthreads();
  for (int chunk = blockIdx.x % n_parts * WARP; chunk < n; chunk += n_parts * WARP) {
    const int number = chunk + lane;
    const bool is_case = number < n;
    real* of_case = u + chain * N_UNITS * n + number;
    forward(shared, of_case, n, is_case, warp, lane);
    __syncthreads();
    if (warp == 0) likelihood(shared, w, targets, begin + number, real(factor[chain]), is_case, lane);
    __syncthreads();
    backward(shared, of_case, n, is_case, warp, lane);
    add_weights(shared, sum);
    __syncthreads();  // before the next chunk's values replace these
  }
  real* of_block = sums + (long long)blockIdx.x * N_SUMS;
#pragma unroll
  for (int k = 0; k < SLOTS; ++k) {
    const int slot = threadIdx.x + k * THREADS, row = slot % N_ROWS, first = slot / N_ROWS * AT_ONCE;
    if (slot >= N_ROWS * GROUPS) continue;
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (first + j < N_OUTPUTS) of_block[row * N_OUTPUTS + first + j] = sum[k][j];
    }
  }
  for (int place = threadIdx.x; place < N_SUMS - BY_INPUTS; place += THREADS) {
    of_block[BY_INPUTS + place] = shared[TOTALS + place];
  }
}

// Adds the sums of all blocks of a chain to its gradient, with a thread for each of them.
extern "C" __global__ void add_sums(const real* sums, real* gradient, int n_chains, int n_parts) {
  const long long here = THIS_THREAD, chain = here / N_SUMS;
  const int number = int(here % N_SUMS);
  if (chain >= n_chains) return;
  real total = 0;
#pragma unroll 8
  for (int part = 0; part < n_parts; ++part) total += sums[(chain * n_parts + part) * N_SUMS + number];
  real* of_chain = gradient + chain * N_PARAMETERS;
  if (number < N_UNITS * N_OUTPUTS) {
    of_chain[TO_OUTPUTS + number] += total;
  } else if (number < BY_INPUTS) {
    add_to_biases<OUTPUT_LAYER>(of_chain, number - N_UNITS * N_OUTPUTS, total);
  } else if (number < BY_VALUES) {
    add_to_biases<LAST>(of_chain, number - BY_INPUTS, total);
  } else if constexpr (HAS_OFFSETS) {
    of_chain[offset_of(LAST) + number - BY_VALUES] += total;
  }
}
