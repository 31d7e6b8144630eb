// Goes through the draws of a segment with the outputs of their networks at one case, for the sums of reduce.cu.
//
// A thread has one case, and a thread block has neighbouring cases and a segment of the draws. If IS_FUSED, the thread
// evaluates the networks, and the block copies their parameters to shared memory TILE draws at a time. Otherwise
// forward.py has evaluated them by products, and the outputs lack biases.
//
// A case has N_CELLS cells: the pieces of a hazard, otherwise one. Inputs, outputs and targets have a column for each
// cell, n_columns in all: the first cells of all cases, then their second cells, and so on.

// `values` are the inputs (n_inputs, n_columns) if IS_FUSED, otherwise the outputs (n_draws, N_OUTPUTS, n_columns).
#define REDUCED const real *position, const real *values, const int *starts, int n_segments, int n_cases

// The segment, the case, whether the thread has one, and a case for threads without.
#define THIS_CASE                                                                                          \
  const int segment = blockIdx.x % n_segments, number = blockIdx.x / n_segments * THREADS + threadIdx.x; \
  const bool has_case = number < n_cases;                                                                \
  const int some_case = has_case ? number : n_cases - 1

// The place of a layer's first unit among all units of a network.
__host__ __device__ constexpr int first_of(int layer) { return layer == 0 ? 0 : first_of(layer - 1) + units_of(layer - 1); }
constexpr int N_UNITS = first_of(N_LAYERS), N_INPUTS = units_of(0);
static_assert(!IS_FUSED || TILE * N_PARAMETERS * sizeof(real) == SHARED_BYTES, "reducing.py counts other bytes");

typedef LaneFor<true> Exact;  // functions for energies: no guess may depend on the device's fast ones

// Computes a layer's values; w are the parameters of the draw.
template <int LAYER> FUNCTION void compute(const real* w, real* units) {
  constexpr int N = units_of(LAYER), A = activation_of(LAYER);
  static_assert(A >= IDENTITY && A <= SIN, "an activation that arithmetic.hpp does not know");
  real* u = units + first_of(LAYER);
#pragma unroll
  for (int m = 0; m < N; ++m) u[m] = bias_of<LAYER>(w, m);
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER) {
#pragma unroll
      for (int k = 0; k < link_units(K); ++k) {
        const real value = units[first_of(link_source(K)) + k];
#pragma unroll
        for (int m = 0; m < N; ++m) u[m] += w[link_start(K) + k * N + m] * value;
      }
    }
  });
  if constexpr (LAYER < OUTPUT_LAYER) {
#pragma unroll
    for (int m = 0; m < N; ++m) {
      real slope;
      u[m] = activate<Exact>(A, u[m], slope);
      if constexpr (offset_of(LAYER) >= 0) u[m] += w[offset_of(LAYER) + m];
    }
  }
}

// The inputs of a cell.
FUNCTION void load_inputs(const real* inputs, int cell, int number, int n_cases, real* x) {
#pragma unroll
  for (int i = 0; i < N_INPUTS; ++i) x[i] = inputs[((long long)i * N_CELLS + cell) * n_cases + number];
}

// Calls f(draw, cell, outputs) for each cell of each draw. Threads beyond the last case compute the last one, because
// all threads copy parameters.
template <class F> FUNCTION void evaluate_draws(REDUCED, F f) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  THIS_CASE;
  real x[N_INPUTS > 0 ? N_INPUTS : 1];
  load_inputs(values, 0, some_case, n_cases, x);
  const int end = starts[segment + 1];
  for (int first = starts[segment]; first < end; first += TILE) {
    const int n = end - first < TILE ? end - first : TILE;
    __syncthreads();  // before parameters of earlier draws are replaced
    for (int place = threadIdx.x; place < n * N_PARAMETERS; place += THREADS)
      shared[place] = position[(long long)first * N_PARAMETERS + place];
    __syncthreads();
    for (int draw = 0; draw < n; ++draw) {
      const real* w = shared + draw * N_PARAMETERS;
      for (int cell = 0; cell < N_CELLS; ++cell) {
        if constexpr (N_CELLS > 1) load_inputs(values, cell, some_case, n_cases, x);
        real units[N_UNITS];
#pragma unroll
        for (int i = 0; i < N_INPUTS; ++i) {
          units[i] = x[i];
          if constexpr (offset_of(0) >= 0) units[i] += w[offset_of(0) + i];
        }
        each<1, N_LAYERS>([&](auto layer) { compute<decltype(layer)::value>(w, units); });
        f(first + draw, cell, units + first_of(OUTPUT_LAYER));
      }
    }
  }
}

// The same with outputs that are already there.
template <class F> FUNCTION void read_draws(REDUCED, F f) {
  THIS_CASE;
  const long long n_columns = (long long)N_CELLS * n_cases;
  for (int draw = starts[segment]; draw < starts[segment + 1]; ++draw) {
    const real* w = position + (long long)draw * N_PARAMETERS;
    for (int cell = 0; cell < N_CELLS; ++cell) {
      const real* outputs = values + (long long)draw * N_OUTPUTS * n_columns + (long long)cell * n_cases + some_case;
      real v[N_OUTPUTS];
#pragma unroll
      for (int o = 0; o < N_OUTPUTS; ++o) v[o] = outputs[o * n_columns] + bias_of<OUTPUT_LAYER>(w, o);
      f(draw, cell, v);
    }
  }
}

template <class F> FUNCTION void each_draw(REDUCED, F f) {
  if constexpr (IS_FUSED)
    evaluate_draws(position, values, starts, n_segments, n_cases, f);
  else
    read_draws(position, values, starts, n_segments, n_cases, f);
}
