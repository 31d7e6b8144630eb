// The regression of regression.cuh by matrices of the features, A = Phi T Phi' + S; model/regression.py has
// its formulas.
//
// A gradient takes two passes over the tiles of cases. The first adds up the products of features Phi T Phi', in
// double. Then A is factorised. The second pass computes the slopes of the features, A^-1 Phi T - m (T r)', in `real`,
// with which the derivatives by the units begin. Logarithms are taken only for the energy at the end.

// A matrix of weights combines features and residuals to slopes. If T is the same for all cases, T is left out of the
// products of features, which then serve all systems, and there is one matrix of weights. Otherwise each system has its
// own products and its own matrix of weights.
constexpr int N_BLOCKS = IS_UNIFORM ? 1 : N_SYSTEMS;      // matrices of weights
constexpr int N_RESIDUALS = IS_UNIFORM ? N_ALL : N_EACH;  // rows of such a matrix behind those of the features
constexpr int BLOCK = (N_FEATURES + N_RESIDUALS) * N_FEATURES;
constexpr int WIDTH = N_FEATURES | 1;  // length of a matrix's row; it is odd, so that columns lie in different banks
constexpr int MATRIX = N_FEATURES * WIDTH;
constexpr bool KEEPS_PRODUCTS = IS_UNIFORM && N_SYSTEMS > 1;  // otherwise the factors take their place

// The places in shared memory behind the ones. In reals: the residuals of each target, the matrices of weights, and -m
// of each target.
constexpr int RESIDUALS = END_OF_ONES;
constexpr int WEIGHTS = RESIDUALS + N_ALL * PITCH;
constexpr int NEGATIVE = WEIGHTS + N_BLOCKS * BLOCK;
constexpr int END_OF_REALS = NEGATIVE + N_ALL * N_FEATURES;

// In doubles: Phi T Phi', Phi T y of each target, the factors X = L^-1, a vector for factorise, X b, m, S, and the
// derivatives by log S.
constexpr int PRODUCTS = (END_OF_REALS * int(sizeof(real)) + 7) / 8;
constexpr int RIGHT = PRODUCTS + N_BLOCKS * MATRIX;
constexpr int FACTORS = RIGHT + N_ALL * N_FEATURES;
constexpr int VECTOR = FACTORS + (KEEPS_PRODUCTS ? MATRIX : 0);
constexpr int HALVES = VECTOR + N_FEATURES;
constexpr int MEANS = HALVES + N_EACH * N_FEATURES;
constexpr int PRECISIONS = MEANS + N_ALL * N_FEATURES;
constexpr int PRIOR_SLOPES = PRECISIONS + N_SYSTEMS * N_FEATURES;
constexpr int END_OF_DOUBLES = PRIOR_SLOPES + N_FEATURES;
static_assert(sizeof(double) * END_OF_DOUBLES <= SHARED_BYTES,
              "launch_plan.py asks for less shared memory than the block needs");

// Computes S, with the factors exp(x) of precisions that move.
__device__ __forceinline__ void set_precisions(real* shared, const Regression& given) {
  for (int place = threadIdx.x; place < N_SYSTEMS * N_FEATURES; place += THREADS) {
    doubles_of(shared)[PRECISIONS + place] = precision_at(shared, given, place);
  }
}

// Adds Phi T Phi' and Phi T y of a tile's cases to those of earlier tiles.
__device__ __forceinline__ void add_products(real* shared, const Regression& given, int first) {
  constexpr int SIDE = weight_tile(N_FEATURES * N_FEATURES), SIDES = (N_FEATURES + SIDE - 1) / SIDE;
  const int n_here = least(TILE, given.n_cases - first);
  each_of_triangle<SIDES>(N_BLOCKS, [&](int system, int i, int j) {
    int row[SIDE], column[SIDE];
    double sum[SIDE][SIDE];
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
      row[k] = place_of(least(i * SIDE + k, N_FEATURES - 1));
      column[k] = place_of(least(j * SIDE + k, N_FEATURES - 1));
#pragma unroll
      for (int l = 0; l < SIDE; ++l) sum[k][l] = 0;
    }
    for (int begin = 0; begin < n_here; begin += QUAD) {
      Quad rows[SIDE], columns[SIDE];
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        rows[k] = quad(shared + row[k] + begin);
        columns[k] = quad(shared + column[k] + begin);
      }
#pragma unroll
      for (int number = 0; number < QUAD; ++number) {
        if (begin + number >= n_here) break;  // there are no cases any more
        double weighted[SIDE];
#pragma unroll
        for (int k = 0; k < SIDE; ++k) {
          weighted[k] = rows[k].at[number];
          if constexpr (!IS_UNIFORM) weighted[k] *= given.noise_of(system, first + begin + number);
        }
#pragma unroll
        for (int l = 0; l < SIDE; ++l) {
          const double value = columns[l].at[number];
#pragma unroll
          for (int k = 0; k < SIDE; ++k) sum[k][l] += weighted[k] * value;
        }
      }
    }
    double* products = doubles_of(shared) + PRODUCTS + system * MATRIX;
#pragma unroll
    for (int k = 0; k < SIDE; ++k) {
#pragma unroll
      for (int l = 0; l < SIDE; ++l) {
        if (i * SIDE + k >= N_FEATURES || j * SIDE + l >= N_FEATURES) continue;
        double& total = products[(i * SIDE + k) * WIDTH + j * SIDE + l];
        total = first > 0 ? total + sum[k][l] : sum[k][l];
      }
    }
  });
  // This begins with the threads that had the fewest products above.
  for (int place = THREADS - 1 - threadIdx.x; place < N_ALL * N_FEATURES; place += THREADS) {
    const int which = place / N_FEATURES, row = place_of(place % N_FEATURES);
    double sum = 0;
    for (int number = 0; number < n_here; ++number) {
      double target = given.target(which, first + number);
      if constexpr (!IS_UNIFORM) target *= given.noise_of(which / N_EACH, first + number);
      sum += target * shared[row + number];
    }
    double& total = doubles_of(shared)[RIGHT + place];
    total = first > 0 ? total + sum : sum;
  }
}

__device__ __forceinline__ double* factors_of(real* shared, int system) {
  return doubles_of(shared) + (KEEPS_PRODUCTS ? FACTORS : PRODUCTS + (IS_UNIFORM ? 0 : system * MATRIX));
}

// Computes L^-1 of A = L L' in the lower triangle of a system's factors.
__device__ __forceinline__ void set_factors(real* shared, const Regression& given, int system) {
  double* a = factors_of(shared, system);
  const double* products = doubles_of(shared) + PRODUCTS + (IS_UNIFORM ? 0 : system * MATRIX);
  const double* precisions = doubles_of(shared) + PRECISIONS + system * N_FEATURES;
  const double t = IS_UNIFORM ? given.noise_of(system, 0) : 1.0;
  each_of_triangle<N_FEATURES>(1, [&](int, int i, int j) {
    a[i * WIDTH + j] = t * products[i * WIDTH + j] + (i == j ? precisions[i] : 0.0);
  });
  __syncthreads();
  factorise<N_FEATURES, WIDTH>(a, doubles_of(shared) + VECTOR);
}

// Computes m = L^-1' (L^-1 b) of a system's targets, and then either the weights of the slopes, or the thread's share
// of the energy (log|A| of each target + m'Sm) / 2, which it returns.
template <bool is_energy>
__device__ __forceinline__ double solve(real* shared, const Regression& given, int system) {
  const double* x = factors_of(shared, system);
  double *doubles = doubles_of(shared), *halves = doubles + HALVES;
  const double t = IS_UNIFORM ? given.noise_of(system, 0) : 1.0;
  for (int place = threadIdx.x; place < N_EACH * N_FEATURES; place += THREADS) {
    const int which = system * N_EACH + place / N_FEATURES, i = place % N_FEATURES;
    double sum = 0;
    for (int j = 0; j <= i; ++j) sum += x[i * WIDTH + j] * doubles[RIGHT + which * N_FEATURES + j];
    halves[place] = t * sum;
  }
  __syncthreads();
  double energy = 0;
  real* block = shared + WEIGHTS + (IS_UNIFORM ? 0 : system * BLOCK);
  const bool is_first = !IS_UNIFORM || system == 0;
  for (int f = threadIdx.x; f < N_FEATURES; f += THREADS) {
    double diagonal = 0, squares = 0;  // the diagonal of A^-1, and the sum of m**2
    for (int i = f; i < N_FEATURES; ++i) diagonal += x[i * WIDTH + f] * x[i * WIDTH + f];
    for (int each = 0; each < N_EACH; ++each) {
      const int which = system * N_EACH + each;
      double m = 0;
      for (int i = f; i < N_FEATURES; ++i) m += x[i * WIDTH + f] * halves[each * N_FEATURES + i];
      squares += m * m;
      doubles[MEANS + which * N_FEATURES + f] = m;
      shared[NEGATIVE + which * N_FEATURES + f] = real(-m);
      block[(N_FEATURES + (IS_UNIFORM ? which : each)) * N_FEATURES + f] = real(-t * m);
    }
    const double s = doubles[PRECISIONS + system * N_FEATURES + f];
    if constexpr (is_energy) {
      energy += 0.5 * s * squares - N_EACH * log(x[f * WIDTH + f]);
    } else {
      const double slope = 0.5 * (s * (N_EACH * diagonal + squares) - N_EACH);
      double& total = doubles[PRIOR_SLOPES + f];
      total = system > 0 ? total + slope : slope;
    }
  }
  if constexpr (!is_energy) {
    each_of_triangle<N_FEATURES>(1, [&](int, int i, int j) {
      double sum = 0;  // an entry of A^-1
      for (int k = i; k < N_FEATURES; ++k) sum += x[k * WIDTH + i] * x[k * WIDTH + j];
      const real weight = real(t * N_EACH * sum) + (is_first ? real(0) : block[i * N_FEATURES + j]);
      block[i * N_FEATURES + j] = weight;
      block[j * N_FEATURES + i] = weight;
    });
  }
  __syncthreads();
  return energy;
}

// Goes through all tiles for the factors, and solves for each system. Returns the thread's share of the energy.
template <bool is_energy> __device__ __forceinline__ double solve_all(real* shared, const Regression& given) {
  for (int first = 0; first < given.n_cases; first += TILE) {
    load_inputs(shared, given.inputs, given.n_cases, first, given.n_cases);
    __syncthreads();
    forward_all<is_energy>(shared);
    add_products(shared, given, first);
    __syncthreads();
  }
  double energy = 0;
  for (int system = 0; system < N_SYSTEMS; ++system) {
    set_factors(shared, given, system);
    energy += solve<is_energy>(shared, given, system);
  }
  return energy;
}

// Goes through the tiles again, from the last tile, which is still in shared memory, and calls f(first case) at each.
template <bool is_exact, class F>
__device__ __forceinline__ void each_tile(real* shared, const Regression& given, F f) {
  const int last = (given.n_cases - 1) / TILE * TILE;
  for (int first = last; first >= 0; first -= TILE) {
    if (first < last) {
      load_inputs(shared, given.inputs, given.n_cases, first, given.n_cases);
      __syncthreads();
      forward_all<is_exact>(shared);
    }
    f(first);
    __syncthreads();
  }
}

// Computes r = y - Phi' m at a tile's cases, with zeros behind the last case.
__device__ __forceinline__ void set_residuals(real* shared, const Regression& given, int first) {
  for (int place = threadIdx.x; place < N_ALL * LANES; place += THREADS) {
    const int which = place / LANES, begin = place % LANES * QUAD;
    Quad residual;
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
      const int number = first + begin + i;
      residual.at[i] = number < given.n_cases ? real(given.target(which, number)) : real(0);
    }
    each_feature([&](int feature, int row) {
      const Quad value = quad(shared + row + begin);
      const real weight = shared[NEGATIVE + which * N_FEATURES + feature];
#pragma unroll
      for (int i = 0; i < QUAD; ++i) residual.at[i] += weight * value.at[i];
    });
    quad(shared + RESIDUALS + which * PITCH + begin) = residual;
  }
}

// The starting values of backward_all in tiles.cuh: the slopes of units that are features.
struct FeatureSlopes {
  real* shared;
  const Regression& given;
  int first;

  template <int LAYER, int UNITS>
  __device__ __forceinline__ void operator()(Number<LAYER>, const int (&unit)[UNITS], Quad (&derivative)[UNITS]) const {
    const int begin = threadIdx.x % LANES * QUAD;
    each<0, N_RUNS>([&](auto run) {
      constexpr int RUN = decltype(run)::value;
      if constexpr (run_layer(RUN) == LAYER) {
        int feature[UNITS];  // threads whose unit is not in the run repeat a unit of the run
#pragma unroll
        for (int k = 0; k < UNITS; ++k) {
          const int here = unit[k] - run_row(RUN);
          feature[k] = run_start(RUN) + (here < 0 ? 0 : least(here, run_size(RUN) - 1));
        }
        for (int number = 0; number < N_BLOCKS; ++number) {
          Quad slope[UNITS];
          combine(feature, shared + WEIGHTS + number * BLOCK, number, begin, slope);
#pragma unroll
          for (int i = 0; i < QUAD; ++i) {
            const int at = first + begin + i;
            if (at >= given.n_cases) continue;
            const real noise = IS_UNIFORM ? real(1) : real(given.noise_of(number, at));
#pragma unroll
            for (int k = 0; k < UNITS; ++k) {
              const int here = unit[k] - run_row(RUN);
              if (here >= 0 && here < run_size(RUN)) derivative[k].at[i] += noise * slope[k].at[i];
            }
          }
        }
      }
    });
  }

  // Multiplies features and residuals by a matrix of weights.
  template <int UNITS>
  __device__ __forceinline__ void combine(const int (&feature)[UNITS], const real* block, int number, int begin,
                                          Quad (&slope)[UNITS]) const {
#pragma unroll
    for (int k = 0; k < UNITS; ++k) slope[k] = Quad{};
    const auto add = [&](int row, int place) {
      const Quad value = quad(shared + place + begin);
#pragma unroll
      for (int k = 0; k < UNITS; ++k) {
        const real weight = block[row * N_FEATURES + feature[k]];
#pragma unroll
        for (int i = 0; i < QUAD; ++i) slope[k].at[i] += weight * value.at[i];
      }
    };
    each_feature(add);
    for (int each = 0; each < N_RESIDUALS; ++each) {
      add(N_FEATURES + each, RESIDUALS + (number * N_EACH + each) * PITCH);
    }
  }
};

// The thread's share of r'Tr / 2 at a tile's cases.
__device__ __forceinline__ double squares_here(real* shared, const Regression& given, int first) {
  double sum = 0;
  for (int place = threadIdx.x; place < N_ALL * TILE; place += THREADS) {
    const int which = place / TILE, number = first + place % TILE;
    if (number >= given.n_cases) continue;
    double residual = given.target(which, number);
    each_feature([&](int feature, int row) {
      residual -= doubles_of(shared)[MEANS + which * N_FEATURES + feature] * shared[row + place % TILE];
    });
    sum += 0.5 * given.noise_of(which / N_EACH, number) * residual * residual;
  }
  return sum;
}

__device__ __forceinline__ void set_gradient(real* shared, const Regression& given) {
  set_precisions(shared, given);
  solve_all<false>(shared, given);
  set_moved_gradient(shared, doubles_of(shared) + PRIOR_SLOPES);
  each_tile<false>(shared, given, [&](int first) {
    set_residuals(shared, given, first);
    __syncthreads();
    backward_all(shared, FeatureSlopes{shared, given, first});
  });
}

__device__ __forceinline__ double energy_of(real* shared, const Regression& given) {
  double energy = threadIdx.x == 0 ? energy_of_moved<N_ALL>(shared) : 0.0;
  energy += solve_all<true>(shared, given);
  each_tile<true>(shared, given, [&](int first) { energy += squares_here(shared, given, first); });
  return energy;
}
