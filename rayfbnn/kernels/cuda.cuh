// What the kernels share: activations, data models and priors, of one case or one parameter at a time.
//
// Compiled by NVRTC behind the constants that cuda.py writes for one network: `real`, the sizes, and the
// tables as constexpr functions, so that every loop over units and links has bounds the compiler knows.
//
// Two ways of computing a unit. Forces (is_exact false) may use the device's fast functions: leapfrog steps
// are reversible and keep volumes under any deterministic force, so the force must be the same function of
// the position at every step, the last one too. Energies (is_exact true) are a pass of their own at the end
// of a trajectory, with accurate functions, and terms and sums in float64.

template <int N> struct Number {
  static constexpr int value = N;
};

// f(Number<FIRST>()), f(Number<FIRST + 1>()), ... : a loop whose index is known to the compiler.
template <int FIRST, int LAST, class F> __device__ __forceinline__ void each(F f) {
  if constexpr (FIRST < LAST) {
    f(Number<FIRST>());
    each<FIRST + 1, LAST>(f);
  }
}

// The same from FIRST down to LAST.
template <int FIRST, int LAST, class F> __device__ __forceinline__ void each_down(F f) {
  if constexpr (FIRST >= LAST) {
    f(Number<FIRST>());
    each_down<FIRST - 1, LAST>(f);
  }
}

enum Activation { IDENTITY, TANH, SIGMOID, RELU, SOFTPLUS, SOFTPLUS0, SIN };
enum Model { GAUSSIAN, STUDENT, BINARY, CLASS };

constexpr int WARP = 32;
constexpr unsigned ALL_THREADS = 0xFFFFFFFFu;
constexpr int OUTPUT_LAYER = N_LAYERS - 1;
constexpr int N_OUTPUTS = units_of(OUTPUT_LAYER);

__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }
__device__ __forceinline__ float fast_log(float x) { return __logf(x); }
__device__ __forceinline__ double fast_log(double x) { return log(x); }
__device__ __forceinline__ float fast_ratio(float x, float y) { return __fdividef(x, y); }
__device__ __forceinline__ double fast_ratio(double x, double y) { return x / y; }

// v = a(u) and its slope a'(u); Neal (2022) eqs. 3, 42. NaN stays NaN, so a chain that blew up shows it.
template <int ACTIVATION, bool is_exact>
__device__ __forceinline__ void activate(real u, real& v, real& slope) {
  constexpr bool is_fast = !is_exact && sizeof(real) == 4;  // in float64 there is nothing faster
  if constexpr (ACTIVATION == IDENTITY) {
    v = u;
    slope = 1;
  } else if constexpr (ACTIVATION == TANH) {
    // Fast: absolute error about 1e-7, as float32's own near one; exp overflows to infinity and v to one.
    if constexpr (is_fast) v = 1 - fast_ratio(real(2), fast_exp(2 * u) + 1);
    else v = tanh(u);
    slope = 1 - v * v;
  } else if constexpr (ACTIVATION == SIGMOID) {
    if constexpr (is_fast) v = fast_ratio(real(1), fast_exp(-u) + 1);
    else v = real(0.5) * tanh(real(0.5) * u) + real(0.5);
    slope = (1 - v) * v;
  } else if constexpr (ACTIVATION == RELU) {
    v = u < 0 ? real(0) : u;
    slope = v > 0 ? real(1) : real(0);
  } else if constexpr (ACTIVATION == SOFTPLUS || ACTIVATION == SOFTPLUS0) {
    if constexpr (is_fast) {
      const real e = fast_exp(u < 0 ? u : -u);
      v = (u < 0 ? real(0) : u) + fast_log(1 + e);
      slope = fast_ratio(u < 0 ? e : real(1), 1 + e);
    } else {
      const real e = exp(u < 0 ? u : -u);
      v = (u < 0 ? real(0) : u) + log1p(e);
      slope = (u < 0 ? e : real(1)) / (1 + e);
    }
    if constexpr (ACTIVATION == SOFTPLUS0) v -= real(0.69314718055994530942);
  } else {
    static_assert(ACTIVATION == SIN, "an activation that cuda.py does not know");
    const real angle = real(1.41421356237309504880) * u;
    v = real(1.41421356237309504880) * sin(angle);
    slope = 2 * cos(angle);
  }
}

// Targets of all cases, where they are known and how much they count, of one chain.
struct Targets {
  const real* rows;       // (N_OUTPUTS, n_cases), for forces
  const double* exact;    // the same in float64, for energies
  const double* weights;  // (N_TARGETS, n_cases), read only where IS_WEIGHTED
  const double* noise;    // (N_TARGETS,) precisions, read only for real targets
  int n_cases;

  __device__ __forceinline__ double weight(int output, int number) const {
    if constexpr (IS_WEIGHTED) return weights[(output % N_TARGETS) * n_cases + number];
    return 1.0;
  }
};

// What both kernels of trajectories are given. Positions and momenta are replaced by those at the end.
//   position, momentum, stepsizes (n_chains, N_PARAMETERS); precisions the same, of each parameter's prior
//   noise (n_chains, N_TARGETS) precisions; inverse_temperature (n_chains,)
//   inputs (n_inputs + 1, n_cases); rows and exact (N_OUTPUTS, n_cases), weights (N_TARGETS, n_cases), a chain's
//   row_stride and weight_stride behind the chain's before (0 where all chains share them)
//   order (n_chains, n_partitions), read only where n_partitions > 1
//   prior_energy, terms (n_chains,): the results, with the precisions' own factors left out
#define KERNEL_ARGUMENTS                                                                                    \
  real *position, real *momentum, const real *stepsizes, const double *precisions, const double *noise,     \
      const double *inverse_temperature, const real *inputs, const real *rows, const double *exact,         \
      const double *weights, const int *order, double *prior_energy, double *terms, long long row_stride,   \
      long long weight_stride, int n_chains, int n_cases, int n_partitions, int n_steps

#define TARGETS_OF(chain)                                                                                   \
  Targets {                                                                                                 \
    rows + (chain) * row_stride, exact + (chain) * row_stride, weights + (chain) * weight_stride,           \
        noise + (chain) * N_TARGETS, n_cases                                                                \
  }

#ifndef DYNAMIC_SHARED_MEMORY  // the shim of the tests brings its own
#define DYNAMIC_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// d log likelihood / d outputs of one case, times `scale`, in place of the outputs; eqs. 37 to 40 with the
// signs of likelihood.py.
__device__ __forceinline__ void output_slopes(real* v, const Targets& targets, int number, real scale) {
  if constexpr (MODEL == CLASS) {
    real largest = v[0], total = 0;
#pragma unroll
    for (int o = 1; o < N_OUTPUTS; ++o) largest = v[o] > largest ? v[o] : largest;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) {
      v[o] = fast_exp(v[o] - largest);
      total += v[o];
    }
    const real each_share = 1 / total;
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) v[o] = targets.rows[o * targets.n_cases + number] - v[o] * each_share;
  }
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) {
    if constexpr (MODEL != CLASS) {
      const real y = targets.rows[o * targets.n_cases + number];
      if constexpr (MODEL == BINARY) {
        real chance, slope;
        activate<SIGMOID, false>(v[o], chance, slope);
        v[o] = y - chance;
      } else {
        const real residual = y - v[o];
        v[o] = real(targets.noise[o]) * residual;
        if constexpr (MODEL == STUDENT) {
          v[o] *= fast_ratio(real(NOISE_ALPHA + 1), real(NOISE_ALPHA) + v[o] * residual);
        }
      }
    }
    v[o] *= scale * real(targets.weight(o, number));
  }
}

// The terms of one case in the log likelihood without normalisers, summed over targets; eqs. 8, 10 to 12.
__device__ __forceinline__ double log_likelihood_terms(const real* v, const Targets& targets, int number) {
  double sum = 0;
  if constexpr (MODEL == CLASS) {
    double largest = v[0], total = 0, chosen = 0;
    for (int o = 1; o < N_OUTPUTS; ++o) largest = v[o] > largest ? v[o] : largest;
    for (int o = 0; o < N_OUTPUTS; ++o) {
      total += exp(v[o] - largest);
      if (targets.exact[o * targets.n_cases + number] > 0.5) chosen = v[o] - largest;
    }
    sum = (chosen - log(total)) * targets.weight(0, number);
    return sum;
  }
  for (int o = 0; o < N_OUTPUTS; ++o) {
    const double y = targets.exact[o * targets.n_cases + number];
    double term;
    if constexpr (MODEL == BINARY) {
      const double output = v[o];
      const double log_one = -((output < 0 ? -output : 0.0) + log1p(exp(output < 0 ? output : -output)));
      term = y > 0.5 ? log_one : log_one - output;
    } else {
      const double residual = y - v[o];
      const double z = targets.noise[o % N_TARGETS] * residual * residual;
      term = MODEL == GAUSSIAN ? -0.5 * z : -(NOISE_ALPHA + 1) / 2 * log1p(z / NOISE_ALPHA);
    }
    sum += term * targets.weight(o, number);
  }
  return sum;
}

// Of one parameter w of precision tau: d energy / dw of the prior, eqs. 35, 36. In float64 until the end:
// precisions beyond the range of float32 have real mass under shapes such as 0.0005.
__device__ __forceinline__ real prior_gradient(int parameter, real w, double tau) {
  double gradient = tau * w;
  if constexpr (HAS_STUDENT_PRIORS) {
    const double alpha = prior_alpha_of(parameter);
    if (alpha > 0) gradient *= (alpha + 1) / (alpha + gradient * w);
  }
  return real(gradient);
}

// Its energy without factors of precisions alone.
__device__ __forceinline__ double prior_energy_of(int parameter, real w, double tau) {
  const double z = tau * w * w;
  if constexpr (HAS_STUDENT_PRIORS) {
    const double alpha = prior_alpha_of(parameter);
    if (alpha > 0) return (alpha + 1) / 2 * log1p(z / alpha);
  }
  return 0.5 * z;
}

__device__ __forceinline__ double sum_over_warp(double value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_THREADS, value, distance);
  }
  return value;
}
