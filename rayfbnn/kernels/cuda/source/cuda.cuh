// What all kernels share, above all the lanes that arithmetic.hpp has on a device: one number a thread.
//
// Compiled by NVRTC behind the constants that cuda.py writes for one network (`real`, the sizes, and the tables as
// constexpr functions, so that every loop over units and links has bounds the compiler knows), arithmetic.hpp and
// network.hpp.
//
// Two ways of computing a unit. Forces (is_exact false) may use the device's fast functions: leapfrog steps
// are reversible and keep volumes under any deterministic force, so the force must be the same function of
// the position at every step, the last one too. Energies (is_exact true) are a pass of their own at the end
// of a trajectory, with accurate functions, and terms and sums in float64.

using namespace RAYFBNN_NAMESPACE;

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

constexpr int WARP = 32;
constexpr unsigned ALL_THREADS = 0xFFFFFFFFu;
constexpr int OUTPUT_LAYER = N_LAYERS - 1;
constexpr int N_OUTPUTS = units_of(OUTPUT_LAYER);

#define FUNCTION static __device__ __forceinline__

// A lane by the device's accurate functions. NaN stays NaN, so a chain that blew up shows it.
template <class S> struct Accurate {
  typedef S Value;
  typedef S Scalar;
  FUNCTION S splat(S x) { return x; }
  FUNCTION S select(bool chosen, S a, S b) { return chosen ? a : b; }
  FUNCTION S absolute(S x) { return ::fabs(x); }
  FUNCTION S at_least(S x, S bound) { return x < bound ? bound : x; }
  FUNCTION S ratio(S a, S b) { return a / b; }
  FUNCTION S tanh(S x) { return ::tanh(x); }
  FUNCTION S sigmoid(S x) { return S(0.5) * ::tanh(S(0.5) * x) + S(0.5); }
  FUNCTION S logistic(S x) { return 1 / (::exp(-x) + 1); }  // exp overflows to infinity, and this to 0
  FUNCTION S exp_of_negative(S x) { return ::exp(x); }
  FUNCTION S log1p_of_fraction(S e) { return ::log1p(e); }
  FUNCTION S log(S x) { return ::log(x); }
  FUNCTION S sine_and_cosine(S x, S& cosine) {
    cosine = ::cos(x);
    return ::sin(x);
  }
};

// A lane by its fast ones; in float64 there is nothing faster.
template <class S> struct Fast : Accurate<S> {};

template <> struct Fast<float> : Accurate<float> {
  FUNCTION float ratio(float a, float b) { return __fdividef(a, b); }
  // Absolute error about 1e-7, as float32's own near one; exp overflows to infinity and this to one.
  FUNCTION float tanh(float x) { return 1 - ratio(2, __expf(2 * x) + 1); }
  FUNCTION float sigmoid(float x) { return logistic(x); }
  FUNCTION float logistic(float x) { return ratio(1, __expf(-x) + 1); }
  FUNCTION float exp_of_negative(float x) { return __expf(x); }
  FUNCTION float log1p_of_fraction(float e) { return __logf(1 + e); }
};

template <bool is_exact> struct LaneFor : Fast<real> {};
template <> struct LaneFor<true> : Accurate<real> {};

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

// Those of one case, as output_slopes wants them.
struct TargetsOfCase {
  const Targets& all;
  int number;
  real factor;

  __device__ __forceinline__ real target(int o) const { return all.rows[o * all.n_cases + number]; }
  __device__ __forceinline__ real tau(int o) const { return real(all.noise[o]); }
  __device__ __forceinline__ real scale(int o) const {
    const real weighted = factor * real(all.weight(o, number));
    if constexpr (MODEL == GAUSSIAN || MODEL == STUDENT_T) return weighted * tau(o);
    return weighted;
  }
  __device__ __forceinline__ real alpha() const { return real(NOISE_ALPHA); }
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

// -d log likelihood / d outputs of one case, times `factor`, in place of the outputs.
__device__ __forceinline__ void slopes_of_case(real* v, const Targets& targets, int number, real factor) {
  output_slopes<LaneFor<false>>(MODEL, v, 1, N_OUTPUTS, TargetsOfCase{targets, number, factor});
}

// As log_likelihood_terms wants those of one case.
struct ExactCase {
  const real* outputs;
  const Targets& all;
  int number;

  __device__ __forceinline__ double output(int o) const { return outputs[o]; }
  __device__ __forceinline__ double target(int o) const { return all.exact[o * all.n_cases + number]; }
  __device__ __forceinline__ double weight(int o) const { return all.weight(o, number); }
  __device__ __forceinline__ double tau(int o) const { return all.noise[o]; }
  __device__ __forceinline__ double alpha() const { return NOISE_ALPHA; }
};

// The terms of one case in the log likelihood without normalisers, summed over targets.
__device__ __forceinline__ double terms_of_case(const real* v, const Targets& targets, int number) {
  return log_likelihood_terms<Accurate<double>>(MODEL, N_OUTPUTS, ExactCase{v, targets, number});
}

__device__ __forceinline__ double sum_over_warp(double value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_THREADS, value, distance);
  }
  return value;
}
