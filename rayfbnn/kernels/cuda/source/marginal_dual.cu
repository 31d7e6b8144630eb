// The regression of regression.cuh by matrices of the cases, B = I + T^1/2 Phi' S^-1 Phi T^1/2;
// model/regression.py has its formulas.
//
// One tile holds all cases. The slopes of the features are S^-1 Phi V, with w = B^-1 T^1/2 y of each target and
// V = T^1/2 (n_each B^-1 - sum over targets w w') T^1/2. They are in double until the derivatives by units begin with
// them, because large terms cancel in them (cpu/source/regression_dual.hpp).

static_assert(N_CASES <= TILE, "one tile must hold all cases");
constexpr int LANES_IN_USE = (N_CASES + QUAD - 1) / QUAD;
// The length of a row of a system's matrix. It is odd, and larger than the number of cases. B and then L^-1 are in the
// lower triangle. V takes the places above L^-1, one column to the right.
constexpr int WIDTH = (N_CASES + 1) | 1;
constexpr int MATRIX = N_CASES * WIDTH;

// The places in shared memory behind the ones, in doubles: the matrices, T^1/2, T^1/2 y, L^-1 T^1/2 y (earlier a vector
// for factorise), w, S^-1, the slopes of the features, and the derivatives by log S.
constexpr int MATRICES = (END_OF_ONES * int(sizeof(real)) + 7) / 8;
constexpr int ROOTS = MATRICES + N_SYSTEMS * MATRIX;
constexpr int RIGHT = ROOTS + N_SYSTEMS * N_CASES;
constexpr int HALVES = RIGHT + N_ALL * N_CASES;
constexpr int SOLVED = HALVES + N_ALL * N_CASES;
constexpr int SPREADS = SOLVED + N_ALL * N_CASES;
constexpr int SLOPES = SPREADS + N_SYSTEMS * N_FEATURES;
constexpr int PRIOR_SLOPES = SLOPES + N_FEATURES * N_CASES;
constexpr int END_OF_DOUBLES = PRIOR_SLOPES + N_FEATURES;
static_assert(sizeof(double) * END_OF_DOUBLES <= SHARED_BYTES,
              "launch_plan.py asks for less shared memory than the block needs");

// Computes S^-1, with the factors exp(x) of precisions that move, T^1/2 and T^1/2 y.
__device__ __forceinline__ void set_given(real* shared, const Regression& given) {
  double* doubles = doubles_of(shared);
  for (int place = threadIdx.x; place < N_SYSTEMS * N_FEATURES; place += THREADS) {
    doubles[SPREADS + place] = 1 / precision_at(shared, given, place);
  }
  for (int place = threadIdx.x; place < N_ALL * N_CASES; place += THREADS) {
    const int which = place / N_CASES, system = which / N_EACH, number = place % N_CASES;
    const double root = sqrt(given.noise_of(system, number));
    if (which % N_EACH == 0) doubles[ROOTS + system * N_CASES + number] = root;
    doubles[RIGHT + place] = root * given.target(which, number);
  }
}

// Computes B of all systems.
__device__ __forceinline__ void set_matrices(real* shared) {
  constexpr int SIDE = weight_tile(N_CASES * N_CASES), SIDES = (N_CASES + SIDE - 1) / SIDE;
  double* doubles = doubles_of(shared);
  each_of_triangle<SIDES>(N_SYSTEMS, [&](int system, int i, int j) {
    int row[SIDE], column[SIDE];
    double sum[SIDE][SIDE];
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
      row[k] = least(i * SIDE + k, N_CASES - 1);
      column[k] = least(j * SIDE + k, N_CASES - 1);
#pragma unroll
      for (int l = 0; l < SIDE; ++l) sum[k][l] = 0;
    }
    each_feature([&](int feature, int place) {
      const double spread = doubles[SPREADS + system * N_FEATURES + feature];
      double scaled[SIDE], value[SIDE];
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        scaled[k] = spread * shared[place + row[k]];
        value[k] = shared[place + column[k]];
      }
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
#pragma unroll
        for (int l = 0; l < SIDE; ++l) sum[k][l] += scaled[k] * value[l];
      }
    });
    const double* roots = doubles + ROOTS + system * N_CASES;
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
#pragma unroll
      for (int l = 0; l < SIDE; ++l) {
        const int c = i * SIDE + k, d = j * SIDE + l;
        if (c >= N_CASES || d > c) continue;
        doubles[MATRICES + system * MATRIX + c * WIDTH + d] = roots[c] * roots[d] * sum[k][l] + (c == d);
      }
    }
  });
}

// Computes w = L^-1' (L^-1 T^1/2 y) of all targets. Returns the thread's share of the energy
// (log|B| of each target + sum of y' T^1/2 w) / 2 if is_energy.
template <bool is_energy> __device__ __forceinline__ double solve(real* shared) {
  double *doubles = doubles_of(shared), energy = 0;
  for (int place = threadIdx.x; place < N_ALL * N_CASES; place += THREADS) {
    const int which = place / N_CASES, c = place % N_CASES;
    const double* x = doubles + MATRICES + which / N_EACH * MATRIX;  // L^-1
    double sum = 0;
    for (int d = 0; d <= c; ++d) sum += x[c * WIDTH + d] * doubles[RIGHT + which * N_CASES + d];
    doubles[HALVES + place] = sum;
  }
  __syncthreads();
  for (int place = threadIdx.x; place < N_ALL * N_CASES; place += THREADS) {
    const int which = place / N_CASES, c = place % N_CASES;
    const double* x = doubles + MATRICES + which / N_EACH * MATRIX;
    double sum = 0;
    for (int d = c; d < N_CASES; ++d) sum += x[d * WIDTH + c] * doubles[HALVES + which * N_CASES + d];
    doubles[SOLVED + place] = sum;
    if constexpr (is_energy) energy += 0.5 * doubles[RIGHT + place] * sum - log(x[c * WIDTH + c]);
  }
  __syncthreads();
  return energy;
}

// Computes the features at all cases and the factors, and solves for w. Returns the thread's share of the energy.
template <bool is_exact> __device__ __forceinline__ double solve_all(real* shared, const Regression& given) {
  load_inputs(shared, given.inputs, N_CASES, 0, N_CASES);
  __syncthreads();
  forward_all<is_exact>(shared);
  set_matrices(shared);
  __syncthreads();
  for (int system = 0; system < N_SYSTEMS; ++system) {
    double* doubles = doubles_of(shared);
    factorise<N_CASES, WIDTH>(doubles + MATRICES + system * MATRIX, doubles + HALVES);
  }
  return solve<is_exact>(shared);
}

// Computes V of all systems.
__device__ __forceinline__ void set_between(real* shared) {
  double* doubles = doubles_of(shared);
  each_of_triangle<N_CASES>(N_SYSTEMS, [&](int system, int i, int j) {
    double *x = doubles + MATRICES + system * MATRIX, *roots = doubles + ROOTS + system * N_CASES;
    double sum = 0;  // an entry of B^-1
    for (int k = i; k < N_CASES; ++k) sum += x[k * WIDTH + i] * x[k * WIDTH + j];
    sum *= N_EACH;
    for (int which = system * N_EACH; which < (system + 1) * N_EACH; ++which) {
      sum -= doubles[SOLVED + which * N_CASES + i] * doubles[SOLVED + which * N_CASES + j];
    }
    x[j * WIDTH + i + 1] = roots[i] * roots[j] * sum;
  });
  __syncthreads();
  each_of_triangle<N_CASES>(N_SYSTEMS, [&](int system, int i, int j) {
    double* v = doubles + MATRICES + system * MATRIX + 1;
    if (j < i) v[i * WIDTH + j] = v[j * WIDTH + i];
  });
  __syncthreads();
}

// Computes the slopes S^-1 Phi V, summed over systems.
__device__ __forceinline__ void set_slopes(real* shared) {
  constexpr int SIDE = weight_tile(N_FEATURES * LANES_IN_USE), ROWS = (N_FEATURES + SIDE - 1) / SIDE;
  double* doubles = doubles_of(shared);
  for (int place = threadIdx.x; place < ROWS * LANES_IN_USE; place += THREADS) {
    int feature[SIDE], row[SIDE], column[QUAD];
    double slope[SIDE][QUAD];
#pragma unroll
    for (int i = 0; i < QUAD; ++i) column[i] = place % LANES_IN_USE * QUAD + i;
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
      feature[k] = place / LANES_IN_USE + k * ROWS;
      row[k] = place_of(least(feature[k], N_FEATURES - 1));
#pragma unroll
      for (int i = 0; i < QUAD; ++i) slope[k][i] = 0;
    }
    for (int system = 0; system < N_SYSTEMS; ++system) {
      const double* between = doubles + MATRICES + system * MATRIX + 1;
      double sum[SIDE][QUAD];
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
#pragma unroll
        for (int i = 0; i < QUAD; ++i) sum[k][i] = 0;
      }
#pragma unroll 2  // 1-100-1 in float64 takes 190 registers; without this line 255, and it spills
      for (int d = 0; d < N_CASES; ++d) {
        double v[QUAD];
#pragma unroll
        for (int i = 0; i < QUAD; ++i) v[i] = between[d * WIDTH + least(column[i], N_CASES - 1)];
#pragma unroll
        for (int k = 0; k < SIDE; ++k) {
          const double value = shared[row[k] + d];
#pragma unroll
          for (int i = 0; i < QUAD; ++i) sum[k][i] += value * v[i];
        }
      }
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        const double spread = doubles[SPREADS + system * N_FEATURES + least(feature[k], N_FEATURES - 1)];
#pragma unroll
        for (int i = 0; i < QUAD; ++i) slope[k][i] += spread * sum[k][i];
      }
    }
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
#pragma unroll
      for (int i = 0; i < QUAD; ++i) {
        if (feature[k] < N_FEATURES && column[i] < N_CASES) {
          doubles[SLOPES + feature[k] * N_CASES + column[i]] = slope[k][i];
        }
      }
    }
  }
  __syncthreads();
}

// Computes the derivatives by log S: -1/2 times the sum over cases of slopes times features.
__device__ __forceinline__ void set_prior_slopes(real* shared) {
  double* doubles = doubles_of(shared);
  for (int feature = threadIdx.x; feature < N_FEATURES; feature += THREADS) {
    const int row = place_of(feature);
    double sum = 0;
    for (int c = 0; c < N_CASES; ++c) sum += doubles[SLOPES + feature * N_CASES + c] * shared[row + c];
    doubles[PRIOR_SLOPES + feature] = -0.5 * sum;
  }
  __syncthreads();
}

// The starting values of backward_all in tiles.cuh: the slopes of units that are features.
struct FeatureSlopes {
  const double* slopes;

  template <int LAYER, int UNITS>
  __device__ __forceinline__ void operator()(Number<LAYER>, const int (&unit)[UNITS], Quad (&derivative)[UNITS]) const {
    const int begin = threadIdx.x % LANES * QUAD;
    each<0, N_RUNS>([&](auto run) {
      constexpr int RUN = decltype(run)::value;
      if constexpr (run_layer(RUN) == LAYER) {
#pragma unroll
        for (int k = 0; k < UNITS; ++k) {
          const int here = unit[k] - run_row(RUN);
          if (here < 0 || here >= run_size(RUN)) continue;
          const double* row = slopes + (run_start(RUN) + here) * N_CASES;
#pragma unroll
          for (int i = 0; i < QUAD; ++i) {
            if (begin + i < N_CASES) derivative[k].at[i] += real(row[begin + i]);
          }
        }
      }
    });
  }
};

__device__ __forceinline__ void set_gradient(real* shared, const Regression& given) {
  set_given(shared, given);
  solve_all<false>(shared, given);
  set_between(shared);
  set_slopes(shared);
  if constexpr (N_MOVED > 0) {
    set_prior_slopes(shared);
    set_moved_gradient(shared, doubles_of(shared) + PRIOR_SLOPES);
  }
  backward_all(shared, FeatureSlopes{doubles_of(shared) + SLOPES});
  __syncthreads();
}

__device__ __forceinline__ double energy_of(real* shared, const Regression& given) {
  // These are two statements, because the operands of + have no order, and solve_all must come last: when it has
  // returned, other threads may already write over the positions.
  const double energy = threadIdx.x == 0 ? energy_of_moved<0>(shared) : 0.0;
  return energy + solve_all<true>(shared, given);
}
