// The code that all CUDA kernels share, above all the lanes of arithmetic.hpp on a device: one number for each thread.
//
// NVRTC compiles this text behind that of arithmetic.hpp and network.hpp and behind the constants that generate.py
// writes for one network: `real`, the sizes, and the tables as constexpr functions. Every loop over units and links
// therefore has bounds that the compiler knows.
//
// A unit is computed in one of two ways. For forces (is_exact false) the device's fast functions are good enough:
// leapfrog steps are reversible and preserve volume under any deterministic force, as long as the force is the same
// function of the position at every step, the last one included. Energies (is_exact true) are computed in a separate
// pass at the end of a trajectory, with accurate functions, and with terms and sums in float64.

using namespace RAYFBNN_NAMESPACE;

// Calls f(Number<FIRST>()), f(Number<FIRST + 1>()), ... up to LAST - 1. The compiler knows the index of this loop.
template <int FIRST, int LAST, class F> __device__ __forceinline__ void each(F f) {
  if constexpr (FIRST < LAST) {
    f(Number<FIRST>());
    each<FIRST + 1, LAST>(f);
  }
}

// Calls f in the same way from FIRST down to LAST.
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

// A lane with the device's accurate functions. NaN stays NaN, so that a diverged chain is visible.
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
  FUNCTION S logistic(S x) { return 1 / (::exp(-x) + 1); }  // if exp overflows to infinity, this is 0
  FUNCTION S exp_of_negative(S x) { return ::exp(x); }
  FUNCTION S exponential(S x) { return ::exp(x); }
  FUNCTION S log1p_of_fraction(S e) { return ::log1p(e); }
  FUNCTION S log(S x) { return ::log(x); }
  FUNCTION S sine_and_cosine(S x, S& cosine) {
    cosine = ::cos(x);
    return ::sin(x);
  }
};

// A lane with the device's fast functions. In float64 there are none.
template <class S> struct Fast : Accurate<S> {};

// Single instructions of the device, which take numbers below 1.2e-38 for zero. __expf and __fdividef are the same
// instructions with a comparison and two multiplications for such numbers, which do not matter here: an exponential is
// added to one, or is a class's share of a sum of at least one, or a rate.
#ifndef FAST_FUNCTIONS  // the shim of the tests defines its own
#define FAST_FUNCTIONS
FUNCTION float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

FUNCTION float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif

constexpr float LOG2_OF_E = 1.44269504088896341f;

template <> struct Fast<float> : Accurate<float> {
  FUNCTION float ratio(float a, float b) { return a * reciprocal(b); }
  // The absolute error is about 1e-7, like that of float32 near one. If exp overflows to infinity, the result is one.
  FUNCTION float tanh(float x) { return fmaf(-2.0f, reciprocal(power_of_two(2 * LOG2_OF_E * x) + 1), 1.0f); }
  FUNCTION float sigmoid(float x) { return logistic(x); }
  FUNCTION float logistic(float x) { return reciprocal(power_of_two(-LOG2_OF_E * x) + 1); }
  FUNCTION float exp_of_negative(float x) { return power_of_two(LOG2_OF_E * x); }
  FUNCTION float exponential(float x) { return power_of_two(LOG2_OF_E * x); }
  FUNCTION float log1p_of_fraction(float e) { return __logf(1 + e); }
};

template <bool is_exact> struct LaneFor : Fast<real> {};
template <> struct LaneFor<true> : Accurate<real> {};

// The targets of one chain at all cases, with the weights of their terms.
struct Targets {
  const real* rows;       // (n_rows, n_cases), for forces; the rows are those of NetworkPlan.n_rows
  const double* exact;    // (n_rows, n_cases) in float64, for energies
  const double* weights;  // (N_TARGETS, n_cases), read only if IS_WEIGHTED
  const double* noise;    // (N_TARGETS,) precisions, read only for real targets and counts with dispersion
  int n_cases;

  __device__ __forceinline__ double weight(int output, int number) const {
    if constexpr (IS_WEIGHTED) return weights[(output % N_TARGETS) * n_cases + number];
    return 1.0;
  }
};

// The targets of one case, in the form that output_slopes reads.
struct TargetsOfCase {
  const Targets& all;
  int number;
  real factor;

  __device__ __forceinline__ real target(int o) const { return all.rows[o * all.n_cases + number]; }
  __device__ __forceinline__ real second(int o) const { return target(N_TARGETS + o); }
  __device__ __forceinline__ real tau(int o) const { return real(all.noise[o]); }
  __device__ __forceinline__ real log_tau(int o) const { return real(::log(all.noise[o])); }
  __device__ __forceinline__ real scale(int o) const {
    const real weighted = factor * real(all.weight(o, number));
    if constexpr (MODEL == GAUSSIAN || MODEL == STUDENT_T) return weighted * tau(o);
    return weighted;
  }
  __device__ __forceinline__ real alpha() const { return real(NOISE_ALPHA); }
};

#define TARGETS_OF(chain)                                                                                   \
  Targets {                                                                                                 \
    rows + (chain) * row_stride, exact + (chain) * row_stride, weights + (chain) * weight_stride,           \
        noise + (chain) * N_TARGETS, n_cases                                                                \
  }

#ifndef DYNAMIC_SHARED_MEMORY  // the shim of the tests defines its own
#define DYNAMIC_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// Replaces the outputs v of one case by -factor d log likelihood / d outputs.
__device__ __forceinline__ void slopes_of_case(real* v, const Targets& targets, int number, real factor) {
  output_slopes<LaneFor<false>>(MODEL, v, 1, N_OUTPUTS, TargetsOfCase{targets, number, factor});
}

// The outputs and targets of one case, in the form that log_likelihood_terms reads.
struct ExactCase {
  const real* outputs;
  const Targets& all;
  int number;

  __device__ __forceinline__ double output(int o) const { return outputs[o]; }
  __device__ __forceinline__ double target(int o) const { return all.exact[o * all.n_cases + number]; }
  __device__ __forceinline__ double second(int o) const { return target(N_TARGETS + o); }
  __device__ __forceinline__ double weight(int o) const { return all.weight(o, number); }
  __device__ __forceinline__ double tau(int o) const { return all.noise[o]; }
  __device__ __forceinline__ double log_tau(int o) const { return ::log(all.noise[o]); }
  __device__ __forceinline__ double alpha() const { return NOISE_ALPHA; }
};

// The log likelihood of one case without normalising constants, summed over targets.
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
