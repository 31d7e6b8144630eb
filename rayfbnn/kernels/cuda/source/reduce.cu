// Sums over draws, fused with the networks' forward pass: rayfbnn/reduce has what is done with them.
//
// A thread has one case, and a thread block has neighbouring cases and a segment of the draws, whose parameters it
// copies to shared memory TILE draws at a time. The sums of a segment go to `parts`. Another kernel then adds the
// segments in their order, so that results do not depend on which block ends first.

typedef LaneFor<true> Exact;  // functions for energies: no guess may depend on the device's fast ones
constexpr int N_VALUES = MODEL == HETEROSCEDASTIC ? N_OUTPUTS / 2 : N_OUTPUTS;

// The place of a layer's first unit among all units of a network.
__host__ __device__ constexpr int first_of(int layer) { return layer == 0 ? 0 : first_of(layer - 1) + units_of(layer - 1); }
constexpr int N_UNITS = first_of(N_LAYERS);
static_assert(TILE * N_PARAMETERS * sizeof(real) == SHARED_BYTES, "reducing.py counts other bytes");

#define REDUCED const real *position, const real *inputs, const int *starts, int n_segments, int n_cases

// Computes a layer's values; w are the parameters of the draw.
template <int LAYER> FUNCTION void compute(const real* w, real* values) {
  constexpr int N = units_of(LAYER), A = activation_of(LAYER);
  static_assert(A >= IDENTITY && A <= SIN, "an activation that arithmetic.hpp does not know");
  real* u = values + first_of(LAYER);
#pragma unroll
  for (int m = 0; m < N; ++m) u[m] = bias_of<LAYER>(w, m);
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER) {
#pragma unroll
      for (int k = 0; k < link_units(K); ++k) {
        const real value = values[first_of(link_source(K)) + k];
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

// Calls f(draw, outputs) for each draw of the block's segment, at the thread's case. Threads beyond the last case
// compute the last one, because all threads copy parameters.
template <class F> FUNCTION void each_draw(REDUCED, F f) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  const int segment = blockIdx.x % n_segments;
  const int here = blockIdx.x / n_segments * THREADS + threadIdx.x, number = here < n_cases ? here : n_cases - 1;
  real x[units_of(0) > 0 ? units_of(0) : 1];
#pragma unroll
  for (int i = 0; i < units_of(0); ++i) x[i] = inputs[(long long)i * n_cases + number];
  const int end = starts[segment + 1];
  for (int first = starts[segment]; first < end; first += TILE) {
    const int n = end - first < TILE ? end - first : TILE;
    __syncthreads();  // before parameters of earlier draws are replaced
    for (int place = threadIdx.x; place < n * N_PARAMETERS; place += THREADS)
      shared[place] = position[(long long)first * N_PARAMETERS + place];
    __syncthreads();
    for (int draw = 0; draw < n; ++draw) {
      const real* w = shared + draw * N_PARAMETERS;
      real values[N_UNITS];
#pragma unroll
      for (int i = 0; i < units_of(0); ++i) {
        values[i] = x[i];
        if constexpr (offset_of(0) >= 0) values[i] += w[offset_of(0) + i];
      }
      each<1, N_LAYERS>([&](auto layer) { compute<decltype(layer)::value>(w, values); });
      f(first + draw, values + first_of(OUTPUT_LAYER));
    }
  }
}

// The segment, the case, and whether the thread has one.
#define THIS_CASE                                                                                          \
  const int segment = blockIdx.x % n_segments, number = blockIdx.x / n_segments * THREADS + threadIdx.x; \
  const bool has_case = number < n_cases

// The outputs, (n_draws, N_OUTPUTS, n_cases).
extern "C" __global__ void outputs_of_draws(REDUCED, real* outputs) {
  THIS_CASE;
  each_draw(position, inputs, starts, n_segments, n_cases, [&](int draw, const real* v) {
    if (!has_case) return;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) outputs[((long long)draw * N_OUTPUTS + o) * n_cases + number] = v[o];
  });
}

constexpr double MOST_LOG = 680;  // as in sums.hpp

// Replaces the outputs by the means of the targets given the draw. Returns zero, or NaN if one is not finite.
FUNCTION double replace_by_means(const real* v, double* mean) {
  double zero = 0;
  if constexpr (MODEL == CLASS) {
    real largest = v[0], sum = 0;
#pragma unroll
    for (int o = 1; o < N_OUTPUTS; ++o) largest = v[o] > largest ? v[o] : largest;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) sum += Exact::exp_of_negative(v[o] - largest);
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) mean[o] = Exact::exp_of_negative(v[o] - largest) / sum;
  } else {
#pragma unroll
    for (int o = 0; o < N_VALUES; ++o) {
      mean[o] = v[o];
      if constexpr (MODEL == BINARY) mean[o] = Exact::logistic(v[o]);
      if constexpr (MODEL == COUNT) mean[o] = ::exp(double(v[o]));
    }
  }
  if constexpr (MODEL == BINARY || MODEL == CLASS || MODEL == COUNT) {
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) zero += double(v[o] * real(0));
  }
  return zero;
}

// Sums of m - shift, of its square, and of the variance of the noise: parts is (n_segments, 3, N_VALUES, n_cases).
extern "C" __global__ void moments_of_draws(REDUCED, const double* shift, double* parts) {
  THIS_CASE;
  double sums[3][N_VALUES], by[N_VALUES];
#pragma unroll
  for (int o = 0; o < N_VALUES; ++o) {
    sums[0][o] = sums[1][o] = sums[2][o] = 0;
    by[o] = shift[(long long)o * n_cases + (has_case ? number : n_cases - 1)];
  }
  each_draw(position, inputs, starts, n_segments, n_cases, [&](int draw, const real* v) {
    double mean[N_VALUES];
    const double zero = replace_by_means(v, mean);
#pragma unroll
    for (int o = 0; o < N_VALUES; ++o) {
      const double excess = mean[o] - by[o];
      sums[0][o] += excess, sums[1][o] += excess * excess, sums[2][o] += zero;
      if constexpr (MODEL == HETEROSCEDASTIC) {
        const double s = v[N_OUTPUTS / 2 + o], within = s < -MOST_LOG ? -MOST_LOG : s > MOST_LOG ? MOST_LOG : s;
        sums[2][o] += ::exp(-within) + ::exp(NOISE_ALPHA);
      }
    }
  });
  if (!has_case) return;
#pragma unroll
  for (int k = 0; k < 3; ++k)
#pragma unroll
    for (int o = 0; o < N_VALUES; ++o) parts[((segment * 3LL + k) * N_VALUES + o) * n_cases + number] = sums[k][o];
}

// Minus infinity, which NVRTC has no name for.
FUNCTION double nothing() { return -1 / ::fabs(0.0); }

// The densities of the targets: log sum = parts[0] + log(parts[1]), (n_segments, 2, n_cases).
extern "C" __global__ void scores_of_draws(REDUCED, const double* exact, const double* weights, const double* noise,
                                           const double* normalisers, double* parts) {
  THIS_CASE;
  double largest = nothing(), scaled = 0;
  each_draw(position, inputs, starts, n_segments, n_cases, [&](int draw, const real* v) {
    if (!has_case) return;
    const Targets targets = {nullptr, exact, weights, noise + (long long)draw * N_TARGETS, n_cases};
    double density = terms_of_case(v, targets, number);
#pragma unroll
    for (int o = 0; o < N_TARGETS; ++o)
      density += targets.weight(o, number) * normalisers[(long long)draw * N_TARGETS + o];
    const double now = density > largest ? density : largest;
    if (now == nothing()) return;
    scaled = scaled * ::exp(largest - now) + ::exp(density - now);
    largest = now;
  });
  if (!has_case) return;
  parts[(segment * 2LL + 0) * n_cases + number] = largest;
  parts[(segment * 2LL + 1) * n_cases + number] = scaled;
}

struct Table {
  const double* cubics;
  double rate;
  int n_cells;

  // 1 - F at u >= 0 and its derivative by u.
  FUNCTION double at(const Table& table, double u, double& derivative) {
    double place = u * table.rate, last = table.n_cells - 0.01;
    place = place < last ? place : last;  // NaN becomes the last place
    const int cell = int(place);
    const double t = place - cell, *c = table.cubics + 4LL * cell;
    derivative = (c[1] + t * (2 * c[2] + 3 * t * c[3])) * table.rate;
    return c[0] + t * (c[1] + t * (c[2] + t * c[3]));
  }
};

// The distribution function and the density of the noise at z standard deviations, and the density's relative slope.
FUNCTION void noise_at(double z, const Table& table, double& cdf, double& density, double& slope) {
  if constexpr (MODEL == STUDENT_T) {
    const double scale = 1 / ::sqrt(NOISE_ALPHA), a = ::fabs(z) * scale, square = a * a + 1, root = ::sqrt(square);
    double by_u;
    const double tail = Table::at(table, ::log(a + root), by_u);
    cdf = z > 0 ? 1 - tail : tail;
    density = -by_u * scale / root;
    slope = -z * (NOISE_ALPHA + 1) / (NOISE_ALPHA * square);
  } else {
    cdf = 0.5 * ::erfc(-0.70710678118654752440 * z);
    density = 0.39894228040143267794 * ::exp(-0.5 * z * z);
    slope = -z;
  }
}

// Sums of F, f and f' at guesses: parts is (n_segments, 3, N_GUESSES, N_TARGETS, n_cases), and guesses without the first
// two. Only models with a distribution function launch it.
extern "C" __global__ void distribution_of_draws(REDUCED, const double* guesses, const double* sigmas,
                                                 const double* cubics, double rate, int n_cells, double* parts) {
  THIS_CASE;
  constexpr int N = N_GUESSES * N_TARGETS;
  const Table table = {cubics, rate, n_cells};
  double sums[3][N], at[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    sums[0][k] = sums[1][k] = sums[2][k] = 0;
    at[k] = guesses[(long long)k * n_cases + (has_case ? number : n_cases - 1)];
  }
  each_draw(position, inputs, starts, n_segments, n_cases, [&](int draw, const real* v) {
#pragma unroll
    for (int o = 0; o < N_TARGETS; ++o) {
      double inverse;
      if constexpr (MODEL == HETEROSCEDASTIC) {
        const double s = v[N_OUTPUTS / 2 + o], log_precision = s - softplus<Accurate<double>>(s + NOISE_ALPHA);
        inverse = ::exp(0.5 * (log_precision < -MOST_LOG ? -MOST_LOG : log_precision));
      } else {
        inverse = 1 / sigmas[(long long)draw * N_TARGETS + o];
      }
#pragma unroll
      for (int q = 0; q < N_GUESSES; ++q) {
        const int k = q * N_TARGETS + o;
        double cdf, density, slope;
        noise_at((at[k] - v[o]) * inverse, table, cdf, density, slope);
        density *= inverse;
        sums[0][k] += cdf, sums[1][k] += density, sums[2][k] += slope * density * inverse;
      }
    }
  });
  if (!has_case) return;
#pragma unroll
  for (int j = 0; j < 3; ++j)
#pragma unroll
    for (int k = 0; k < N; ++k) parts[((segment * 3LL + j) * N + k) * n_cases + number] = sums[j][k];
}

// Adds n numbers of each segment, from `offset` of its `stride`, to a row of the sums, in the order of the segments.
extern "C" __global__ void add_parts(const double* parts, const int* rows, double* sums, int n_segments,
                                     long long stride, long long offset, long long n) {
  const long long here = THIS_THREAD;
  if (here >= n) return;
  for (int segment = 0; segment < n_segments; ++segment)
    sums[rows[segment] * n + here] += parts[segment * stride + offset + here];
}

// Adds the densities of segments to those of earlier draws.
extern "C" __global__ void merge_scores(const double* parts, double* maxima, double* scaled, int n_segments, int n_cases) {
  const long long here = THIS_THREAD;
  if (here >= n_cases) return;
  double largest = maxima[here], sum = scaled[here];
  for (int segment = 0; segment < n_segments; ++segment) {
    const double other = parts[segment * 2LL * n_cases + here], now = other > largest ? other : largest;
    if (now == nothing()) continue;
    sum = sum * ::exp(largest - now) + parts[(segment * 2LL + 1) * n_cases + here] * ::exp(other - now);
    largest = now;
  }
  maxima[here] = largest, scaled[here] = sum;
}
