// The pass through a network at one tile of cases after another, by the thread block of a chain.
//
// The chain's positions and gradient are in shared memory. The cases come to shared memory in tiles of TILE. The values
// of all units at a tile's cases, and then the derivatives, are products of small matrices there. Each thread computes
// a few units at four cases at a time, and in the gradient a few weights. Every sum has a fixed order, so that results
// have the same bits each time, whatever else runs.

constexpr int QUAD = 4;               // cases that a thread loads at a time
constexpr int PITCH = TILE + QUAD;    // length of a unit's row; with one quad more, rows start in different banks
constexpr int LANES = TILE / QUAD;    // threads along the cases
constexpr int GROUPS = THREADS / LANES;  // threads along the units
static_assert(THREADS % LANES == 0, "the threads along a tile's cases must divide the threads of the block");

struct __align__(16) Quad {
  real at[QUAD];
};

__device__ __forceinline__ Quad& quad(real* place) { return *reinterpret_cast<Quad*>(place); }

// The places in shared memory, in reals: positions, gradient, and then the rows of a tile.
__host__ __device__ constexpr int rounded(int n) { return (n + QUAD - 1) / QUAD * QUAD; }
constexpr int GRADIENT = rounded(N_PARAMETERS);
constexpr int TILES = 2 * rounded(N_PARAMETERS);

// The rows of a layer's values with offsets added, for the inputs and hidden layers.
__host__ __device__ constexpr int values_of(int layer) {
  int row = 0;
  for (int before = 0; before < layer; ++before) row += units_of(before);
  return TILES + row * PITCH;
}

// The rows of a layer's slopes, which the derivatives by its summed inputs replace, for hidden layers and the outputs.
__host__ __device__ constexpr int slopes_of(int layer) {
  int row = 0;
  for (int before = 1; before < layer; ++before) row += units_of(before);
  return values_of(OUTPUT_LAYER) + row * PITCH;
}

// The rows of the derivatives by a layer's values, for layers with offsets.
__host__ __device__ constexpr int derivatives_of(int layer) {
  int row = 0;
  for (int before = 0; before < layer; ++before) row += offset_of(before) >= 0 ? units_of(before) : 0;
  return slopes_of(N_LAYERS) + row * PITCH;
}

constexpr int END_OF_TILES = derivatives_of(OUTPUT_LAYER);

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }

// How many units of a layer one thread computes at a time.
__host__ __device__ constexpr int unit_tile(int n_units) { return least((n_units + GROUPS - 1) / GROUPS, 8); }

// How many weights one thread sums along each side of a matrix: more if there are enough weights for all threads.
__host__ __device__ constexpr int weight_tile(int n_weights) {
  return n_weights >= 8 * THREADS ? 4 : n_weights >= 2 * THREADS ? 2 : 1;
}

// Loads the inputs of a tile's cases, with zeros behind the last case.
__device__ __forceinline__ void load_inputs(real* shared, const real* inputs, int n_cases, int begin, int end) {
  for (int place = threadIdx.x; place < units_of(0) * TILE; place += THREADS) {
    const int unit = place / TILE, number = begin + place % TILE;
    real value = number < end ? inputs[(long long)unit * n_cases + number] : real(0);
    if constexpr (offset_of(0) >= 0) value += shared[offset_of(0) + unit];
    shared[values_of(0) + unit * PITCH + place % TILE] = value;
  }
}

// Rows of the weights into the units of a tile, or out of them.
template <int UNITS, int ROW_STEP, int UNIT_STEP> struct WeightRows {
  const real* weights;
  const int (&unit)[UNITS];

  __device__ __forceinline__ real at(int m) const { return weights[unit[m] * UNIT_STEP]; }
  __device__ __forceinline__ void step() { weights += ROW_STEP; }
};

// Rows of a tile at the thread's cases.
struct QuadRows {
  static constexpr int AT_ONCE = 4;
  real* values;

  __device__ __forceinline__ void load(real (&to)[QUAD]) const {
    const Quad here = quad(values);
#pragma unroll
    for (int i = 0; i < QUAD; ++i) to[i] = here.at[i];
  }
  __device__ __forceinline__ void step() { values += PITCH; }
};

__device__ __forceinline__ void store(real* place, const real (&values)[QUAD]) {
  Quad here;
#pragma unroll
  for (int i = 0; i < QUAD; ++i) here.at[i] = values[i];
  quad(place) = here;
}

template <int K, int UNITS> struct LinkForward {
  static constexpr int N = units_of(link_destination(K));
  real* shared;
  const int (&unit)[UNITS];
  int lane;

  __device__ __forceinline__ void add_products(real (&u)[UNITS][QUAD]) const {
    const WeightRows<UNITS, N, 1> weights = {shared + link_start(K), unit};
    const QuadRows values = {shared + values_of(link_source(K)) + QUAD * lane};
    if constexpr (link_units(K) > 0) multiply_add(u, link_units(K), weights, values);
  }
  __device__ __forceinline__ constexpr bool has_biases() const { return link_rows(K) > link_units(K); }
  __device__ __forceinline__ real bias(int m) const { return shared[link_start(K) + link_units(K) * N + unit[m]]; }
};

template <int K, int UNITS> struct LinkBackward {
  static constexpr int N = units_of(link_destination(K));
  real* shared;
  const int (&unit)[UNITS];
  int lane;

  __device__ __forceinline__ void add_products(real (&derivative)[UNITS][QUAD]) const {
    const WeightRows<UNITS, 1, N> weights = {shared + link_start(K), unit};
    multiply_add(derivative, N, weights, QuadRows{shared + slopes_of(link_destination(K)) + QUAD * lane});
  }
};

// A few units of a layer at the thread's cases: unit `first` and others GROUPS apart. Threads without a unit repeat the
// layer's last unit, and their results are not kept.
template <int LAYER> struct TileUnits {
  static constexpr int N = units_of(LAYER), UNITS = unit_tile(N);
  real* shared;
  int lane, first;
  int unit[UNITS];

  __device__ __forceinline__ TileUnits(real* shared, int base)
      : shared(shared), lane(threadIdx.x % LANES), first(base + threadIdx.x / LANES) {
#pragma unroll
    for (int k = 0; k < UNITS; ++k) unit[k] = least(first + k * GROUPS, N - 1);
  }

  __device__ __forceinline__ bool has(int m) const { return first + m * GROUPS < N; }
  __device__ __forceinline__ constexpr bool has_offsets() const {
    return LAYER < OUTPUT_LAYER && offset_of(LAYER) >= 0;
  }
  // The place of unit m at the thread's cases, in the rows of its layer that begin at `rows`.
  __device__ __forceinline__ real* place(int rows, int m) const {
    return shared + rows + unit[m] * PITCH + QUAD * lane;
  }

  // Calls f with the layer's activation, if it has one.
  template <class F> __device__ __forceinline__ void with_activation(F f) const {
    if constexpr (LAYER == OUTPUT_LAYER) {
      f(Number<IDENTITY>());
    } else if constexpr (LAYER > 0) {
      f(Number<activation_of(LAYER)>());
    }
  }
};

template <int LAYER> struct TileForward : TileUnits<LAYER> {
  static constexpr bool WANTS_SLOPES = LAYER < OUTPUT_LAYER;
  static constexpr int UNITS = TileUnits<LAYER>::UNITS;
  using TileUnits<LAYER>::TileUnits;

  __device__ __forceinline__ void begin(real (&u)[UNITS][QUAD]) const {
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
#pragma unroll
      for (int i = 0; i < QUAD; ++i) u[k][i] = 0;
    }
  }
  template <class F> __device__ __forceinline__ void each_link(F f) const {
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_destination(K) == LAYER) f(LinkForward<K, UNITS>{this->shared, this->unit, this->lane});
    });
  }
  __device__ __forceinline__ real offset(int m) const { return this->shared[offset_of(LAYER) + this->unit[m]]; }
  template <int A>
  __device__ __forceinline__ void keep(Number<A>, int m, const real (&v)[QUAD], const real (&seen)[QUAD],
                                       const real (&slope)[QUAD]) const {
    if constexpr (LAYER == OUTPUT_LAYER) {
      store(this->place(slopes_of(LAYER), m), v);
    } else {
      store(this->place(values_of(LAYER), m), seen);
      store(this->place(slopes_of(LAYER), m), slope);
    }
  }
};

// Computes a layer's values and slopes from the values of earlier layers.
template <int LAYER, bool is_exact> __device__ __forceinline__ void forward(real* shared) {
  constexpr int UNITS = TileForward<LAYER>::UNITS;
  for (int base = 0; base < units_of(LAYER); base += GROUPS * UNITS) {
    forward_tile<LaneFor<is_exact>, UNITS, QUAD>(TileForward<LAYER>(shared, base));
  }
}

template <bool is_exact> __device__ __forceinline__ void forward_all(real* shared) {
  each<1, N_LAYERS>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    if constexpr (units_of(LAYER) > 0) {
      forward<LAYER, is_exact>(shared);
      __syncthreads();
    }
  });
}

// The starting values of backward_all that are all zero.
struct Nothing {
  template <int LAYER, int UNITS>
  __device__ __forceinline__ void operator()(Number<LAYER>, const int (&)[UNITS], Quad (&)[UNITS]) const {}
};

template <int LAYER, class Begin> struct TileBackward : TileUnits<LAYER> {
  static constexpr int UNITS = TileUnits<LAYER>::UNITS;
  const Begin& begun;

  __device__ __forceinline__ TileBackward(real* shared, int base, const Begin& begun)
      : TileUnits<LAYER>(shared, base), begun(begun) {}

  __device__ __forceinline__ void begin(real (&derivative)[UNITS][QUAD]) const {
    Quad sums[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; ++k) sums[k] = Quad{};
    begun(Number<LAYER>(), this->unit, sums);
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
#pragma unroll
      for (int i = 0; i < QUAD; ++i) derivative[k][i] = sums[k].at[i];
    }
  }
  template <class F> __device__ __forceinline__ void each_link(F f) const {
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_source(K) == LAYER && link_units(K) > 0)
        f(LinkBackward<K, UNITS>{this->shared, this->unit, this->lane});
    });
  }
  __device__ __forceinline__ void keep_by_values(const real (&derivative)[UNITS][QUAD]) const {
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      if (this->has(k)) store(this->place(derivatives_of(LAYER), k), derivative[k]);
    }
  }
  template <int A> __device__ __forceinline__ void load_slopes(Number<A>, int m, real (&slope)[QUAD]) const {
    QuadRows{this->place(slopes_of(LAYER), m)}.load(slope);
  }
  __device__ __forceinline__ void keep(int m, const real (&derivative)[QUAD]) const {
    store(this->place(slopes_of(LAYER), m), derivative);
  }
};

// Computes the derivatives by a layer's summed inputs from those of later layers. begin(layer, units, derivatives) adds
// to the derivatives by the values of these units at the thread's cases before anything else does.
template <int LAYER, class Begin> __device__ __forceinline__ void backward(real* shared, const Begin& begin) {
  constexpr int UNITS = TileUnits<LAYER>::UNITS;
  for (int base = 0; base < units_of(LAYER); base += GROUPS * UNITS) {
    backward_tile<LaneFor<false>, UNITS, QUAD>(TileBackward<LAYER, Begin>(shared, base, begin));
  }
}

// Several rows of a tile side by side, with some cases of each at a time. The last row stands in for rows behind it.
template <int SIDE, int N> struct QuadColumns {
  real* rows;
  const int (&number)[SIDE];

  __device__ __forceinline__ void load(int i, real (&to)[QUAD]) const {
    QuadRows{rows + least(number[i], N - 1) * PITCH}.load(to);
  }
  __device__ __forceinline__ void step() { rows += QUAD; }
};

// Adds the sums of n rows over the tile to the gradient of biases or offsets. Loads are of quads, because neighbouring
// rows start QUAD banks apart: loads of single numbers would let four threads wait for each other.
__device__ __forceinline__ void add_row_sums(real* shared, int rows, int n, int start, int first_thread) {
  // Groups begin at different threads, so that the few rows of one group do not wait for those of another.
  const int thread = (threadIdx.x + THREADS - first_thread % THREADS) % THREADS;
  for (int row = thread; row < n; row += THREADS) {
    Quad sums = quad(&shared[rows + row * PITCH]);
    for (int i = QUAD; i < TILE; i += QUAD) {
      const Quad here = quad(&shared[rows + row * PITCH + i]);
#pragma unroll
      for (int k = 0; k < QUAD; ++k) sums.at[k] += here.at[k];
    }
    shared[GRADIENT + start + row] += (sums.at[0] + sums.at[1]) + (sums.at[2] + sums.at[3]);
  }
}

// Adds the tile's share to the gradient of one link's matrix; eqs. 50 to 57.
template <int K> __device__ __forceinline__ void add_gradient(real* shared) {
  constexpr int N = link_units(K), N_TO = units_of(link_destination(K)), SIDE = weight_tile(N * N_TO);
  constexpr int ROWS = (N + SIDE - 1) / SIDE, COLUMNS = (N_TO + SIDE - 1) / SIDE;
  for (int place = threadIdx.x; place < ROWS * COLUMNS; place += THREADS) {
    int row[SIDE], column[SIDE];
    real sum[SIDE][SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
      row[i] = place / COLUMNS + i * ROWS;
      column[i] = place % COLUMNS + i * COLUMNS;
#pragma unroll
      for (int j = 0; j < SIDE; ++j) sum[i][j] = 0;
    }
    const QuadColumns<SIDE, N> values = {shared + values_of(link_source(K)), row};
    const QuadColumns<SIDE, N_TO> slopes = {shared + slopes_of(link_destination(K)), column};
    add_products<QUAD>(sum, TILE / QUAD, values, slopes);
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
      for (int j = 0; j < SIDE; ++j) {
        if (row[i] < N && column[j] < N_TO) {
          shared[GRADIENT + link_start(K) + row[i] * N_TO + column[j]] += sum[i][j];
        }
      }
    }
  }
}

// Adds the tile's share of the gradient to that in shared memory. It begins with the derivatives by the outputs, and
// with what `begin` adds to the derivatives by other units.
template <class Begin> __device__ __forceinline__ void backward_all(real* shared, const Begin& begin) {
  each_down<OUTPUT_LAYER - 1, 0>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    if constexpr (LAYER > 0 || offset_of(0) >= 0) {
      backward<LAYER>(shared, begin);
      __syncthreads();
    }
  });
  each<0, N_LINKS>([&](auto link) {
    constexpr int K = decltype(link)::value;
    constexpr int N_TO = units_of(link_destination(K));
    if constexpr (link_units(K) > 0) add_gradient<K>(shared);
    if constexpr (link_rows(K) > link_units(K)) {
      add_row_sums(shared, slopes_of(link_destination(K)), N_TO, link_start(K) + link_units(K) * N_TO, 32 * K + 32);
    }
  });
  each<0, OUTPUT_LAYER>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    if constexpr (offset_of(LAYER) >= 0) {
      add_row_sums(shared, derivatives_of(LAYER), units_of(LAYER), offset_of(LAYER), 32 * (N_LINKS + LAYER));
    }
  });
}
