// Sums over draws for predictions: rayfbnn/reduce has what is done with them, and cpu/source/reduce the same on CPUs.
//
// The sums of a segment of draws go to `parts`. Another kernel then adds the segments in their order, so that results do
// not depend on which block ends first. The sums are in float64.

constexpr bool ARE_COUNTS = MODEL == COUNT || MODEL == DISPERSED_COUNT;
constexpr int N_VALUES = MODEL == HETEROSCEDASTIC ? N_OUTPUTS / 2 : N_OUTPUTS;

// The outputs, (n_draws, N_OUTPUTS, n_cases * N_CELLS): the cells of a case are together.
extern "C" __global__ void outputs_of_draws(REDUCED, real* outputs) {
  THIS_CASE;
  each_draw(position, values, starts, n_segments, n_cases, [&](int draw, int cell, const real* v) {
    if (!has_case) return;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o)
      outputs[(((long long)draw * N_OUTPUTS + o) * n_cases + number) * N_CELLS + cell] = v[o];
  });
}

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
      if constexpr (ARE_COUNTS) mean[o] = ::exp(double(v[o]));
    }
  }
  if constexpr (MODEL == BINARY || MODEL == CLASS || ARE_COUNTS) {
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) zero += double(v[o] * real(0));
  }
  return zero;
}

// The variance of the noise that is an output, for a target with number o.
FUNCTION double noise_variance(const real* v, int o) {
  return ::exp(-Doubles::at_most(Doubles::at_least(v[N_OUTPUTS / 2 + o], -MOST_LOG), MOST_LOG)) + ::exp(NOISE_ALPHA);
}

// Adds a cell to the moments of a time. NaN in the sum of variances marks a hazard that is not finite.
FUNCTION void add_cell(Formulas::TimeMoments& time, int cell, const real* v, double& variances) {
  const double length = cell < LAST_CELL ? piece_start(cell + 1) - piece_start(cell) : -1;
  Formulas::add_piece(time, Formulas::bounded_log_hazard(v[0]), piece_start(cell), length);
  variances += double(v[0]) * 0;
}

// Sums of m - shift, of its square, and of the variance of the noise, of a time, or of what dispersion adds to a count:
// parts is (n_segments, 3, N_VALUES, n_cases). `shapes` of counts with dispersion is (n_draws, N_TARGETS, N_OF_SHAPE).
extern "C" __global__ void moments_of_draws(REDUCED, const double* shift, const double* shapes, double* parts) {
  THIS_CASE;
  double sums[3][N_VALUES], by[N_VALUES];
  Formulas::TimeMoments time = {};
#pragma unroll
  for (int o = 0; o < N_VALUES; ++o) {
    sums[0][o] = sums[1][o] = sums[2][o] = 0;
    by[o] = shift[(long long)o * n_cases + some_case];
  }
  each_draw(position, values, starts, n_segments, n_cases, [&](int draw, int cell, const real* v) {
    double mean[N_VALUES], zero = 0;
    if constexpr (MODEL == SURVIVAL) {
      add_cell(time, cell, v, sums[2][0]);
      if (cell < LAST_CELL) return;
      mean[0] = time.mean;
      sums[2][0] += Doubles::at_least(time.square - time.mean * time.mean, 0);
      time = {};
    } else {
      zero = replace_by_means(v, mean);
    }
#pragma unroll
    for (int o = 0; o < N_VALUES; ++o) {
      const double excess = mean[o] - by[o];
      sums[0][o] += excess, sums[1][o] += excess * excess, sums[2][o] += zero;
      if constexpr (MODEL == HETEROSCEDASTIC) sums[2][o] += noise_variance(v, o);
      if constexpr (MODEL == DISPERSED_COUNT)
        sums[2][o] += mean[o] * mean[o] / shapes[((long long)draw * N_TARGETS + o) * N_OF_SHAPE];
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

// The densities of the targets: log sum = parts[0] + log(parts[1]), (n_segments, 2, n_cases). Rows of targets are in
// `exact`, (n_rows, n_columns).
extern "C" __global__ void scores_of_draws(REDUCED, const double* exact, const double* weights, const double* noise,
                                           const double* normalisers, double* parts) {
  THIS_CASE;
  double largest = nothing(), scaled = 0, density = 0;
  each_draw(position, values, starts, n_segments, n_cases, [&](int draw, int cell, const real* v) {
    if (!has_case) return;
    const long long of_draw = (long long)draw * N_TARGETS;
    const Targets targets = {nullptr, exact, weights, noise + of_draw, N_CELLS * n_cases};
    density += terms_of_case(v, targets, cell * n_cases + number);
    if (cell < LAST_CELL) return;
#pragma unroll
    for (int o = 0; o < N_TARGETS; ++o) density += targets.weight(o, number) * normalisers[of_draw + o];
    const double now = density > largest ? density : largest, e = density;
    density = 0;
    if (now == nothing()) return;
    scaled = scaled * ::exp(largest - now) + ::exp(e - now);
    largest = now;
  });
  if (!has_case) return;
  parts[(segment * 2LL + 0) * n_cases + number] = largest;
  parts[(segment * 2LL + 1) * n_cases + number] = scaled;
}

// Sums of F, f and f' at guesses: parts is (n_segments, 3, N_GUESSES, N_TARGETS, n_cases), and guesses without the first
// two. f' of a time is by its logarithm, and that of a count is zero. `table` has the constants of counts, or the cubics
// of t noise, (n_places, 4). `sigmas` are those of the noise, or shapes as in moments_of_draws. Models of labels do not
// launch it.
extern "C" __global__ void distribution_of_draws(REDUCED, const double* guesses, const double* table, double* parts,
                                                 const double* sigmas, double rate, int n_places) {
  THIS_CASE;
  AtGuesses at(guesses, some_case, n_cases);
  Hazards hazards;
  const Table cubics = {table, rate, n_places};
  each_draw(position, values, starts, n_segments, n_cases, [&](int draw, int cell, const real* v) {
    if constexpr (MODEL == SURVIVAL)
      add_times(at, hazards, cell, v);
    else if constexpr (MODEL == COUNT)
      add_counts(at, v, table, some_case, n_cases);
    else if constexpr (MODEL == DISPERSED_COUNT)
      add_dispersed_counts(at, v, sigmas + (long long)draw * N_TARGETS * N_OF_SHAPE, table, some_case, n_cases);
    else
      add_real(at, v, sigmas + (long long)draw * N_TARGETS, cubics);
  });
  if (!has_case) return;
#pragma unroll
  for (int j = 0; j < 3; ++j)
#pragma unroll
    for (int k = 0; k < AtGuesses::N; ++k)
      parts[((segment * 3LL + j) * AtGuesses::N + k) * n_cases + number] = at.sums[j][k];
}

// Sums of the probabilities of counts: parts is (n_segments, 1, N_GUESSES, N_TARGETS, n_cases).
extern "C" __global__ void mass_of_draws(REDUCED, const double* counts, const double* constants, const double* shapes,
                                         double* parts) {
  if constexpr (ARE_COUNTS) {
    THIS_CASE;
    AtGuesses at(counts, some_case, n_cases);
    each_draw(position, values, starts, n_segments, n_cases, [&](int draw, int, const real* v) {
#pragma unroll
      for (int k = 0; k < AtGuesses::N; ++k) {
        if constexpr (MODEL == DISPERSED_COUNT) {
          const double* of_draw = shapes + (long long)draw * N_TARGETS * N_OF_SHAPE;
          at.sums[1][k] += dispersed_mass(at, k, v, of_draw, constants, some_case, n_cases);
          continue;
        }
        const double log_rate = Doubles::at_most(v[k % N_TARGETS], MOST_LOG_RATE);
        at.sums[1][k] += Formulas::count_mass(log_rate, count_at(at.guesses[k], k, constants, some_case, n_cases));
      }
    });
    if (!has_case) return;
#pragma unroll
    for (int k = 0; k < AtGuesses::N; ++k)
      parts[((long long)segment * AtGuesses::N + k) * n_cases + number] = at.sums[1][k];
  }
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
