// A network at tiles of cases, by the block of threads that has its chain.
//
// The chain's positions and gradient are in shared memory, where cases go through in tiles of TILE: the values
// of all units at a tile's cases, then the derivatives back, are products of small matrices in shared memory,
// each thread computing a few units at four cases at a time (in the gradient: a few weights). Every sum has one
// order, whatever else runs: the same bits each time.

constexpr int QUAD = 4;               // cases that a thread loads at a time
constexpr int PITCH = TILE + QUAD;    // of a unit's row in a tile; one quad more: rows start in different banks
constexpr int LANES = TILE / QUAD;    // threads along the cases
constexpr int GROUPS = THREADS / LANES;  // threads along the units
static_assert(THREADS % LANES == 0, "a tile's cases must divide the threads");

struct __align__(16) Quad {
  real at[QUAD];
};

__device__ __forceinline__ Quad& quad(real* place) { return *reinterpret_cast<Quad*>(place); }

// Where things lie in shared memory, in reals: positions, gradient, then rows of tiles.
__host__ __device__ constexpr int rounded(int n) { return (n + QUAD - 1) / QUAD * QUAD; }
constexpr int GRADIENT = rounded(N_PARAMETERS);
constexpr int TILES = 2 * rounded(N_PARAMETERS);

// Rows of the values of a layer as its destinations see them; inputs and hidden layers.
__host__ __device__ constexpr int values_of(int layer) {
  int row = 0;
  for (int before = 0; before < layer; ++before) row += units_of(before);
  return TILES + row * PITCH;
}

// Rows of the slopes of a hidden layer, then of the derivatives by its summed inputs; the outputs' likewise.
__host__ __device__ constexpr int slopes_of(int layer) {
  int row = 0;
  for (int before = 1; before < layer; ++before) row += units_of(before);
  return values_of(OUTPUT_LAYER) + row * PITCH;
}

// Rows of the derivatives by the values of a layer with offsets.
__host__ __device__ constexpr int derivatives_of(int layer) {
  int row = 0;
  for (int before = 0; before < layer; ++before) row += offset_of(before) >= 0 ? units_of(before) : 0;
  return slopes_of(N_LAYERS) + row * PITCH;
}

constexpr int END_OF_TILES = derivatives_of(OUTPUT_LAYER);

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }

// Units of a layer that one thread computes at a time.
__host__ __device__ constexpr int unit_tile(int n_units) { return least((n_units + GROUPS - 1) / GROUPS, 8); }

// Weights that one thread sums along each side of a matrix: wide where there are enough of them for all.
__host__ __device__ constexpr int weight_tile(int n_weights) {
  return n_weights >= 8 * THREADS ? 4 : n_weights >= 2 * THREADS ? 2 : 1;
}

// The inputs of a tile's cases, zeros behind the last.
__device__ __forceinline__ void load_inputs(real* shared, const real* inputs, int n_cases, int begin, int end) {
  for (int place = threadIdx.x; place < units_of(0) * TILE; place += THREADS) {
    const int unit = place / TILE, number = begin + place % TILE;
    real value = number < end ? inputs[(long long)unit * n_cases + number] : real(0);
    if constexpr (offset_of(0) >= 0) value += shared[offset_of(0) + unit];
    shared[values_of(0) + unit * PITCH + place % TILE] = value;
  }
}

// A layer's values and slopes from those of the layers before.
template <int LAYER, bool is_exact> __device__ __forceinline__ void forward(real* shared) {
  constexpr int N = units_of(LAYER), UNITS = unit_tile(N);
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  for (int base = 0; base < N; base += GROUPS * UNITS) {
    Quad u[UNITS];
    int unit[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      unit[k] = least(base + group + k * GROUPS, N - 1);  // threads without a unit repeat the last
      u[k] = Quad{};
    }
    each<0, N_LINKS>([&](auto link) {
      constexpr int K = decltype(link)::value;
      if constexpr (link_destination(K) == LAYER) {
        const real* weights = shared + link_start(K);
        real* source = shared + values_of(link_source(K)) + QUAD * lane;
        if constexpr (link_units(K) > 0) {
#pragma unroll 4
          for (int row = 0; row < link_units(K); ++row) {
            const Quad value = quad(source + row * PITCH);
#pragma unroll
            for (int k = 0; k < UNITS; ++k) {
              const real weight = weights[row * N + unit[k]];
#pragma unroll
              for (int i = 0; i < QUAD; ++i) u[k].at[i] += weight * value.at[i];
            }
          }
        }
        if constexpr (link_rows(K) > link_units(K)) {
#pragma unroll
          for (int k = 0; k < UNITS; ++k) {
            const real bias = weights[link_units(K) * N + unit[k]];
#pragma unroll
            for (int i = 0; i < QUAD; ++i) u[k].at[i] += bias;
          }
        }
      }
    });
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      if (base + group + k * GROUPS >= N) continue;
      if constexpr (LAYER < OUTPUT_LAYER) {
        Quad value, slope;
#pragma unroll
        for (int i = 0; i < QUAD; ++i) {
          value_and_slope<activation_of(LAYER), is_exact>(u[k].at[i], value.at[i], slope.at[i]);
          if constexpr (offset_of(LAYER) >= 0) value.at[i] += shared[offset_of(LAYER) + unit[k]];
        }
        quad(shared + values_of(LAYER) + unit[k] * PITCH + QUAD * lane) = value;
        quad(shared + slopes_of(LAYER) + unit[k] * PITCH + QUAD * lane) = slope;
      } else {
        quad(shared + slopes_of(LAYER) + unit[k] * PITCH + QUAD * lane) = u[k];
      }
    }
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

// Where the derivatives by all units begin at zero.
struct Nothing {
  template <int LAYER, int UNITS>
  __device__ __forceinline__ void operator()(Number<LAYER>, const int (&)[UNITS], Quad (&)[UNITS]) const {}
};

// Derivatives by a layer's summed inputs from those of the layers behind, eq. 41, and what `begin` adds to the
// derivatives by its units: begin(layer, units, their derivatives at the thread's cases).
template <int LAYER, class Begin> __device__ __forceinline__ void backward(real* shared, const Begin& begin) {
  constexpr int N = units_of(LAYER), UNITS = unit_tile(N);
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  for (int base = 0; base < N; base += GROUPS * UNITS) {
    Quad derivative[UNITS];
    int unit[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      unit[k] = least(base + group + k * GROUPS, N - 1);
      derivative[k] = Quad{};
    }
    begin(Number<LAYER>(), unit, derivative);
    each<0, N_LINKS>([&](auto link) {
      constexpr int K = decltype(link)::value;
      if constexpr (link_source(K) == LAYER && link_units(K) > 0) {
        constexpr int N_TO = units_of(link_destination(K));
        const real* weights = shared + link_start(K);
        real* behind = shared + slopes_of(link_destination(K)) + QUAD * lane;
#pragma unroll 4
        for (int to = 0; to < N_TO; ++to) {
          const Quad slope = quad(behind + to * PITCH);
#pragma unroll
          for (int k = 0; k < UNITS; ++k) {
            const real weight = weights[unit[k] * N_TO + to];
#pragma unroll
            for (int i = 0; i < QUAD; ++i) derivative[k].at[i] += weight * slope.at[i];
          }
        }
      }
    });
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      if (base + group + k * GROUPS >= N) continue;
      const int place = unit[k] * PITCH + QUAD * lane;
      if constexpr (offset_of(LAYER) >= 0) quad(shared + derivatives_of(LAYER) + place) = derivative[k];
      if constexpr (LAYER > 0) {
        Quad& slope = quad(shared + slopes_of(LAYER) + place);
#pragma unroll
        for (int i = 0; i < QUAD; ++i) slope.at[i] *= derivative[k].at[i];
      }
    }
  }
}

// Adds a row's sum over the tile to the gradient, for each of `n` rows: biases and offsets.
__device__ __forceinline__ void add_row_sums(real* shared, int rows, int n, int start, int first_thread) {
  // Begun at different threads, so that the few rows of one group do not wait for those of another.
  const int thread = (threadIdx.x + THREADS - first_thread % THREADS) % THREADS;
  for (int row = thread; row < n; row += THREADS) {
    real sum = 0;
    for (int i = 0; i < TILE; ++i) sum += shared[rows + row * PITCH + i];
    shared[GRADIENT + start + row] += sum;
  }
}

// Adds a tile's share to the gradient of one link's matrix, eqs. 50 to 57.
template <int K> __device__ __forceinline__ void add_gradient(real* shared) {
  constexpr int N = link_units(K), N_TO = units_of(link_destination(K)), SIDE = weight_tile(N * N_TO);
  constexpr int ROWS = (N + SIDE - 1) / SIDE, COLUMNS = (N_TO + SIDE - 1) / SIDE;
  constexpr int VALUES = values_of(link_source(K)), SLOPES = slopes_of(link_destination(K));
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
    for (int first = 0; first < TILE; first += QUAD) {
      Quad value[SIDE], slope[SIDE];
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
        value[i] = quad(shared + VALUES + least(row[i], N - 1) * PITCH + first);
        slope[i] = quad(shared + SLOPES + least(column[i], N_TO - 1) * PITCH + first);
      }
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
#pragma unroll
          for (int number = 0; number < QUAD; ++number) {
            sum[i][j] += value[i].at[number] * slope[j].at[number];
          }
        }
      }
    }
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

// From the derivatives by the outputs, or from what `begin` adds to those by other units, to a tile's share of the
// gradient, which is added to what is in shared memory.
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
