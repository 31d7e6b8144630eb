// Whole trajectories of tiny networks, with one warp for each chain. Each thread computes one case at a time.
//
// The gradient over a thread's cases stays in its registers. At the end of a pass the 32 threads add their gradients
// up. Each thread ends with the gradient of its own share of the parameters; it also has their momenta,
// stepsizes and priors. Positions are in shared memory, from which all threads read the same weight at the same time.
// Warps do not wait for each other, and inside a trajectory only cases are read from device memory.

constexpr int OWN = (N_PARAMETERS + WARP - 1) / WARP;  // parameters of one thread, from its number * OWN on
constexpr int PADDED = OWN * WARP;

// Where the units of a layer begin in a case's array of all units, which has the inputs first.
__host__ __device__ constexpr int place_of(int layer) {
  int place = 0;
  for (int before = 0; before < layer; ++before) place += units_of(before);
  return place;
}

constexpr int N_UNITS = place_of(N_LAYERS);

// Rows of weights in shared memory, ROW_STEP apart.
template <int ROW_STEP> struct WeightRows {
  const real* weights;

  __device__ __forceinline__ real at(int m) const { return weights[m]; }
  __device__ __forceinline__ void step() { weights += ROW_STEP; }
};

// Numbers of the thread's case, one after the other in registers, which cannot be indexed at run time.
struct Registers {
  static constexpr int AT_ONCE = 1024;  // unrolls every loop completely
  const real* values;

  __device__ __forceinline__ void load(real (&to)[1]) const { to[0] = *values; }
  __device__ __forceinline__ void load(int i, real (&to)[1]) const { to[0] = values[i]; }
  __device__ __forceinline__ void step() { ++values; }
};

template <int K> struct LinkForward {
  static constexpr int N = units_of(link_destination(K));
  const real *w, *value;

  __device__ __forceinline__ void add_products(real (&u)[N][1]) const {
    const WeightRows<N> weights = {w + link_start(K)};
    if constexpr (link_units(K) > 0)
      multiply_add(u, link_units(K), weights, Registers{value + place_of(link_source(K))});
  }
  __device__ __forceinline__ constexpr bool has_biases() const { return link_rows(K) > link_units(K); }
  __device__ __forceinline__ real bias(int m) const { return w[link_start(K) + link_units(K) * N + m]; }
};

// All units of a layer.
template <int LAYER> struct TileForward {
  static constexpr bool WANTS_SLOPES = LAYER < OUTPUT_LAYER;
  static constexpr int N = units_of(LAYER), PLACE = place_of(LAYER);
  const real* w;
  real *value, *slope;

  __device__ __forceinline__ void begin(real (&u)[N][1]) const {
#pragma unroll
    for (int m = 0; m < N; ++m) u[m][0] = 0;
  }
  template <class F> __device__ __forceinline__ void each_link(F f) const {
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_destination(K) == LAYER) f(LinkForward<K>{w, value});
    });
  }
  template <class F> __device__ __forceinline__ void with_activation(F f) const {
    if constexpr (LAYER == OUTPUT_LAYER) {
      f(Number<IDENTITY>());
    } else {
      f(Number<activation_of(LAYER)>());
    }
  }
  __device__ __forceinline__ constexpr bool has(int) const { return true; }
  __device__ __forceinline__ constexpr bool has_offsets() const {
    return LAYER < OUTPUT_LAYER && offset_of(LAYER) >= 0;
  }
  __device__ __forceinline__ real offset(int m) const { return w[offset_of(LAYER) + m]; }
  template <int A>
  __device__ __forceinline__ void keep(Number<A>, int m, const real (&)[1], const real (&seen)[1],
                                       const real (&slopes)[1]) const {
    value[PLACE + m] = seen[0];
    if constexpr (LAYER < OUTPUT_LAYER) slope[PLACE + m] = slopes[0];
  }
};

// The forward pass at one case: every unit's value, with its offset added, and its slope.
template <bool is_exact>
__device__ __forceinline__ void forward(const real* w, const real* inputs, int n_cases, int number, real* value,
                                        real* slope) {
#pragma unroll
  for (int i = 0; i < units_of(0); ++i) {
    value[i] = inputs[i * n_cases + number];
    if constexpr (offset_of(0) >= 0) value[i] += w[offset_of(0) + i];
  }
  each<1, N_LAYERS>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    forward_tile<LaneFor<is_exact>, units_of(LAYER), 1>(TileForward<LAYER>{w, value, slope});
  });
}

template <int K> struct LinkBackward {
  static constexpr int N = units_of(link_destination(K));
  const real *w, *slope;
  int unit;

  __device__ __forceinline__ void add_products(real (&derivative)[1][1]) const {
    const WeightRows<1> weights = {w + link_start(K) + unit * N};
    multiply_add(derivative, N, weights, Registers{slope + place_of(link_destination(K))});
  }
};

// One unit of a layer.
template <int LAYER> struct TileBackward {
  const real* w;
  real *slope, *gradient;
  int unit;

  __device__ __forceinline__ void begin(real (&derivative)[1][1]) const { derivative[0][0] = 0; }
  template <class F> __device__ __forceinline__ void each_link(F f) const {
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_source(K) == LAYER && link_units(K) > 0) f(LinkBackward<K>{w, slope, unit});
    });
  }
  template <class F> __device__ __forceinline__ void with_activation(F f) const {
    if constexpr (LAYER > 0) f(Number<activation_of(LAYER)>());
  }
  __device__ __forceinline__ constexpr bool has(int) const { return true; }
  __device__ __forceinline__ constexpr bool has_offsets() const { return offset_of(LAYER) >= 0; }
  __device__ __forceinline__ void keep_by_values(const real (&derivative)[1][1]) const {
    gradient[offset_of(LAYER) + unit] += derivative[0][0];
  }
  template <int A> __device__ __forceinline__ void load_slopes(Number<A>, int, real (&to)[1]) const {
    to[0] = slope[place_of(LAYER) + unit];
  }
  __device__ __forceinline__ void keep(int, const real (&derivative)[1]) const {
    slope[place_of(LAYER) + unit] = derivative[0];
  }
};

// The backward pass at one case: adds to the gradient of all parameters. In `value`, the entries of the outputs hold
// the derivatives with respect to the outputs.
__device__ __forceinline__ void backward(const real* w, real* value, real* slope, real* gradient) {
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) {
    slope[place_of(OUTPUT_LAYER) + o] = value[place_of(OUTPUT_LAYER) + o];
  }
  each_down<OUTPUT_LAYER, 0>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value, N = units_of(LAYER);
    const Registers slopes = {slope + place_of(LAYER)};
    if constexpr (LAYER < OUTPUT_LAYER && (LAYER > 0 || offset_of(0) >= 0)) {
#pragma unroll
      for (int unit = 0; unit < N; ++unit)
        backward_tile<LaneFor<false>, 1, 1>(TileBackward<LAYER>{w, slope, gradient, unit});
    }
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_destination(K) == LAYER) {
        real* own = gradient + link_start(K);
        if constexpr (link_units(K) > 0) {
          add_products<1>(reinterpret_cast<real(&)[link_units(K)][N]>(*own), 1,
                          Registers{value + place_of(link_source(K))}, slopes);
        }
        if constexpr (link_rows(K) > link_units(K)) {
#pragma unroll
          for (int unit = 0; unit < N; ++unit) own[link_units(K) * N + unit] += slopes.values[unit];
        }
      }
    });
  });
}

// Sums COUNT values over the threads of the warp. Thread t ends with the sums t * OWN .. t * OWN + OWN - 1 in v[0 ..
// OWN - 1]. At each step a thread keeps one half of its values and gives the other half away. This takes COUNT
// exchanges in all; one sum after another would take 5 COUNT.
template <int COUNT, int DISTANCE> __device__ __forceinline__ void share_sums(real* v, int thread) {
  if constexpr (DISTANCE > 0) {
    constexpr int HALF = COUNT / 2;
    const bool keeps_upper = (thread & DISTANCE) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const real kept = keeps_upper ? v[i + HALF] : v[i];
      const real given = keeps_upper ? v[i] : v[i + HALF];
      v[i] = kept + __shfl_xor_sync(ALL_THREADS, given, DISTANCE);
    }
    share_sums<HALF, DISTANCE / 2>(v, thread);
  }
}

// The registers allow three thread blocks on a multiprocessor (two in float64, and for the largest networks). With
// four, 2-16-2 spills 236 bytes.
constexpr int BLOCKS_AT_ONCE = MIN_BLOCKS;
constexpr int CHAIN_THREADS = WARP;

__device__ __forceinline__ long long chain_here() {
  return (long long)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
}
__device__ __forceinline__ int thread_of_chain() { return threadIdx.x % WARP; }

template <class F> __device__ __forceinline__ void each_parameter(F f) {
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int parameter = thread_of_chain() * OWN + i;
    if (parameter < N_PARAMETERS) f(parameter);
  }
}

__device__ __forceinline__ void run_piece(const Piece& piece, const ChainData& data, Energy& energy) {
  const int thread = thread_of_chain(), first = thread * OWN;
  __shared__ real positions[THREADS / WARP][PADDED];
  real* w = positions[threadIdx.x / WARP];
  real p[OWN], full[OWN];
  double tau[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const bool is_own = first + i < N_PARAMETERS;
    w[first + i] = is_own ? piece.position[first + i] : real(0);
    p[i] = is_own ? piece.momentum[first + i] : real(0);
    full[i] = is_own ? piece.stepsize(first + i) / data.n_partitions : real(0);
    tau[i] = is_own ? data.precisions[first + i] : 0.0;
  }
  __syncwarp();

  const int last = piece.n_steps < 0 ? 0 : piece.n_steps * data.n_partitions;
  for (int sub_step = 0; sub_step <= last; ++sub_step) {
    if (sub_step > 0) {
#pragma unroll
      for (int i = 0; i < OWN; ++i) w[first + i] += full[i] * p[i];
      __syncwarp();
    }
    const Cases cases = data.cases_at(piece, sub_step);
    real gradient[PADDED];
#pragma unroll
    for (int i = 0; i < PADDED; ++i) gradient[i] = 0;
#pragma unroll 1  // several cases at once would take registers from other warps
    for (int number = cases.begin + thread; number < cases.end; number += WARP) {
      real value[N_UNITS], slope[N_UNITS];
      // This forces weights to be read again; kept for all cases, they would fill all registers.
      asm volatile("" ::: "memory");
      forward<false>(w, data.inputs, data.n_cases, number, value, slope);
      slopes_of_case(value + place_of(OUTPUT_LAYER), data.targets, number, data.factor);
      backward(w, value, slope, gradient);
    }
    share_sums<PADDED, WARP / 2>(gradient, thread);
    __syncwarp();  // all threads have read the positions, which are moved next
    const bool is_end = sub_step == 0 || sub_step == last;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      gradient[i] += real(prior_slope(w[first + i], tau[i], prior_alpha_of(first + i)));
      p[i] -= (is_end ? full[i] / 2 : full[i]) * gradient[i];
    }
  }

  const int n_with_energies = piece.n_steps < 0 ? 0 : data.n_cases;
  for (int number = thread; number < n_with_energies; number += WARP) {
    real value[N_UNITS], slope[N_UNITS];
    forward<true>(w, data.inputs, data.n_cases, number, value, slope);
    energy.terms += terms_of_case(value + place_of(OUTPUT_LAYER), data.targets, number);
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    if (first + i < N_PARAMETERS) {
      energy.prior += prior_term(w[first + i], tau[i], prior_alpha_of(first + i));
      piece.end_position[first + i] = w[first + i];
      piece.end_momentum[first + i] = p[i];
    }
  }
}

__device__ __forceinline__ void sum_over_chain(Energy& energy) {
  energy.terms = sum_over_warp(energy.terms);
  energy.prior = sum_over_warp(energy.prior);
}
