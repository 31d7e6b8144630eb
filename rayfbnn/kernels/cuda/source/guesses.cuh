// F, f and f' at guesses given a draw, added up for reduce.cu: of real targets, counts and times.

struct Doubles : Accurate<double> {
  FUNCTION double at_most(double x, double bound) { return x > bound ? bound : x; }
  FUNCTION double root(double x) { return ::sqrt(x); }
  FUNCTION double small_expm1(double x) { return ::expm1(x); }
};
typedef Predictive<Doubles> Formulas;
typedef Dispersed<Doubles> DispersedFormulas;
constexpr int LAST_CELL = N_CELLS - 1;

// 1 - F of t noise by cubics, (n_places, 4), at u = asinh(|z| / sqrt(df)) times the rate.
struct Table {
  const double* cubics;
  double rate;
  int n_places;

  // 1 - F at u >= 0 and its derivative by u.
  FUNCTION double at(const Table& table, double u, double& derivative) {
    double place = u * table.rate, last = table.n_places - 0.01;
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

// The inverse of the noise's standard deviation, for a target with number o.
FUNCTION double inverse_scale(const real* v, int o, const double* sigmas) {
  if constexpr (MODEL == HETEROSCEDASTIC) {
    const double s = v[N_OUTPUTS / 2 + o], log_precision = s - softplus<Accurate<double>>(s + NOISE_ALPHA);
    return ::exp(0.5 * (log_precision < -MOST_LOG ? -MOST_LOG : log_precision));
  }
  return 1 / sigmas[o];
}

// The sums of F, f and f' at the guesses of a case. The shape of both is (N_GUESSES, N_TARGETS).
struct AtGuesses {
  static constexpr int N = N_GUESSES * N_TARGETS;
  double guesses[N], sums[3][N];

  __device__ __forceinline__ AtGuesses(const double* all, int number, int n_cases) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      guesses[k] = all[(long long)k * n_cases + number];
      sums[0][k] = sums[1][k] = sums[2][k] = 0;
    }
  }
  __device__ __forceinline__ void add(int k, double cdf, double density, double slope) {
    sums[0][k] += cdf, sums[1][k] += density, sums[2][k] += slope;
  }
};

FUNCTION void add_real(AtGuesses& at, const real* v, const double* sigmas, const Table& table) {
#pragma unroll
  for (int o = 0; o < N_TARGETS; ++o) {
    const double inverse = inverse_scale(v, o, sigmas);
#pragma unroll
    for (int q = 0; q < N_GUESSES; ++q) {
      double cdf, density, slope;
      noise_at((at.guesses[q * N_TARGETS + o] - v[o]) * inverse, table, cdf, density, slope);
      density *= inverse;
      at.add(q * N_TARGETS + o, cdf, density, slope * density * inverse);
    }
  }
}

// The count k among those of a case. `constants` are those of mixtures/poisson.py, (2, N_GUESSES, N_TARGETS, n_cases).
FUNCTION Formulas::Count count_at(double k, int place, const double* constants, int number, int n_cases) {
  const double* constant = constants + (long long)place * n_cases + number;
  return {k, constant[0], constant[(long long)AtGuesses::N * n_cases]};
}

FUNCTION void add_counts(AtGuesses& at, const real* v, const double* constants, int number, int n_cases) {
#pragma unroll
  for (int k = 0; k < AtGuesses::N; ++k) {
    const double log_rate = Doubles::at_most(v[k % N_TARGETS], MOST_LOG_RATE), count = at.guesses[k];
    double cdf, mass;
    if (count < FROM_EXPANSION)
      Formulas::small_count(log_rate, count, int(count), cdf, mass);
    else
      Formulas::large_count(log_rate, count_at(count, k, constants, number, n_cases), cdf, mass);
    at.add(k, cdf, mass, 0);
  }
}

// `shapes` are those of a draw, (N_TARGETS, N_OF_SHAPE).
FUNCTION void add_dispersed_counts(
    AtGuesses& at, const real* v, const double* shapes, const double* constants, int number, int n_cases) {
#pragma unroll
  for (int o = 0; o < N_TARGETS; ++o) {
    const DispersedFormulas::Shape shape = DispersedFormulas::shape_at(shapes + o * N_OF_SHAPE);
    const DispersedFormulas::Odds odds = DispersedFormulas::odds(Doubles::at_most(v[o], MOST_LOG_RATE), shape);
    for (int q = 0; q < N_GUESSES; ++q) {
      const int k = q * N_TARGETS + o;
      const double count = at.guesses[k];
      double cdf, mass;
      if (count < FROM_FRACTION)
        DispersedFormulas::small_count(odds, count, shape, int(count), cdf, mass);
      else
        DispersedFormulas::large_count(
            odds, count_at(count, k, constants, number, n_cases), shape, count < FROM_NORMAL, count >= FROM_NORMAL, cdf,
            mass);
      at.add(k, cdf, mass, 0);
    }
  }
}

// P(Y = k) given a draw, for the guess with number `place`.
FUNCTION double dispersed_mass(
    const AtGuesses& at, int place, const real* v, const double* shapes, const double* constants, int number, int n_cases) {
  const int o = place % N_TARGETS;
  const DispersedFormulas::Shape shape = DispersedFormulas::shape_at(shapes + o * N_OF_SHAPE);
  const DispersedFormulas::Odds odds = DispersedFormulas::odds(Doubles::at_most(v[o], MOST_LOG_RATE), shape);
  const double count = at.guesses[place];
  double cdf, mass;
  if (count >= FROM_FRACTION)
    return DispersedFormulas::at_large(odds, count_at(count, place, constants, number, n_cases), shape).mass;
  DispersedFormulas::small_count(odds, count, shape, int(count), cdf, mass);
  return mass;
}

// For each guess at a time: the integral of the hazard up to the time, and the hazard then, as far as the cells go.
struct Hazards {
  double integral[N_GUESSES], last[N_GUESSES];
};

FUNCTION void add_times(AtGuesses& at, Hazards& hazards, int cell, const real* v) {
  const double hazard = ::exp(Formulas::bounded_log_hazard(v[0])), start = piece_start(cell);
#pragma unroll
  for (int q = 0; q < N_GUESSES; ++q) {
    double time = at.guesses[q], end = time;
    if (cell < LAST_CELL && piece_start(cell + 1) < time) end = piece_start(cell + 1);
    const double added = end > start ? hazard * (end - start) : 0;
    hazards.integral[q] = cell == 0 ? added : hazards.integral[q] + added;
    if (cell == 0 || time >= start) hazards.last[q] = hazard;
    if (cell < LAST_CELL) continue;
    double cdf, density, slope;
    Formulas::time_distribution(hazards.integral[q], hazards.last[q], time, cdf, density, slope);
    at.add(q, cdf, density, slope);
  }
}
