// The arithmetic of a network over a lane of cases, written once: a lane is a SIMD pack or a single number.
//
// Devices have sources of their own (cuda.cuh), for their fast functions and their threads' way through cases.
//
//     activate<L>(code, u, slope)    v = a(u); the slope a'(u) goes to `slope` if has_kept_slope(code),
//     slope_of<L>(code, v)           else it follows from v
//     multiply_add<UNITS>(...)       sums over source units for UNITS destinations and CASES lanes at once,
//                                    forwards (row_step = n_destinations, unit_step = 1) and backwards (row_step = 1,
//                                    unit_step = n_destinations) alike
//     add_products(...)              the gradient of a tile of weights, summed over the lanes of one thread
//     output_slopes<L>(...)          -d log likelihood / d outputs for every data model
//     log_likelihood_term(...)       the term of one case and target in double, for the energies
//     prior_slope, prior_term        of one parameter, in double
// Energies are computed in double from outputs in the lane's type, as the plain code does. A blow-up has to
// stay visible: every function here turns NaN into NaN, so nothing may be compiled with -ffast-math.
//
// Equations are those of Neal (2022) in model/network.py, model/likelihood.py and model/prior.py.
#ifndef RAYFBNN_NETWORK_HPP
#define RAYFBNN_NETWORK_HPP

#ifndef RAYFBNN_NAMESPACE
#define RAYFBNN_NAMESPACE rayfbnn_network
#endif

#ifndef RAYFBNN_INLINE
#define RAYFBNN_INLINE static inline __attribute__((always_inline))
#endif

namespace RAYFBNN_NAMESPACE {

// The codes of program.py.
enum Activation { IDENTITY, TANH, SIGMOID, RELU, SOFTPLUS, SOFTPLUS0, SIN };
enum Model { GAUSSIAN, STUDENT_T, BINARY, CLASS };

// --- lanes ----------------------------------------------------------------------------------------------
// What a lane type needs: arithmetic, comparisons, Lane<L>, and the functions select, splat, round_to_integer
// and power_of_two. Here for one value; lanes.hpp, which comes in where RAYFBNN_PACKS is defined, has them for
// SIMD packs.

template <class L>
struct Lane;

template <>
struct Lane<float> {
    typedef float Scalar;
    typedef int Integer;
    static constexpr int width = 1;
};

template <>
struct Lane<double> {
    typedef double Scalar;
    typedef long long Integer;
    static constexpr int width = 1;
};

RAYFBNN_INLINE float select(bool chosen, float a, float b) { return chosen ? a : b; }
RAYFBNN_INLINE double select(bool chosen, double a, double b) { return chosen ? a : b; }

template <class L>
RAYFBNN_INLINE L splat(typename Lane<L>::Scalar x) {
    return x - L{};  // of a pack: x in every place
}

// The integer nearest to x, |x| < 2**22, as a float and as an integer: adding 1.5 * 2**23 (2**52) leaves it
// in the low bits.
RAYFBNN_INLINE int bits_of(float x) {
    int bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
RAYFBNN_INLINE long long bits_of(double x) {
    long long bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
RAYFBNN_INLINE float value_of(int bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
RAYFBNN_INLINE double value_of(long long bits) {
    double x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

}  // namespace RAYFBNN_NAMESPACE

#if defined(RAYFBNN_PACKS)
#include "lanes.hpp"  // here, because a template sees only the functions of packs that come before it
#endif

namespace RAYFBNN_NAMESPACE {

template <class S>
struct Format;
template <>
struct Format<float> {
    static constexpr float magic = 12582912.0f;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float lowest_exponent = -87.0f;  // exp of it is still a normal number
};
template <>
struct Format<double> {
    static constexpr double magic = 6755399441055744.0;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double lowest_exponent = -708.0;
};

template <class L>
RAYFBNN_INLINE L round_to_integer(L x, typename Lane<L>::Integer& integer) {
    typedef Format<typename Lane<L>::Scalar> F;
    const L shifted = x + F::magic;
    integer = bits_of(shifted) - bits_of(F::magic);
    return shifted - F::magic;
}

template <class L>
RAYFBNN_INLINE L power_of_two(typename Lane<L>::Integer n) {
    typedef Format<typename Lane<L>::Scalar> F;
    return value_of((n + F::bias) << F::mantissa);
}

// The second where either is NaN, so that NaN stays NaN below. lanes.hpp has them as single instructions.
template <class L>
RAYFBNN_INLINE L smaller(L a, L b) {
    return select(a < b, a, b);
}
template <class L>
RAYFBNN_INLINE L larger(L a, L b) {
    return select(a > b, a, b);
}
template <class L>
RAYFBNN_INLINE L absolute(L x) {
    return larger(-x, x);
}
template <class L>
RAYFBNN_INLINE L at_most(L x, typename Lane<L>::Scalar bound) {
    return smaller(splat<L>(bound), x);
}
template <class L>
RAYFBNN_INLINE L at_least(L x, typename Lane<L>::Scalar bound) {
    return larger(splat<L>(bound), x);
}

// --- elementary functions -------------------------------------------------------------------------------

template <class S>
struct Is_double {
    static constexpr bool value = false;
};
template <>
struct Is_double<double> {
    static constexpr bool value = true;
};

// exp(r) - 1 for |r| <= log(2)/2: the Taylor series up to r**8/8! (relative error 2e-9) or r**14/14! (2e-18).
template <class L>
RAYFBNN_INLINE L small_expm1(L r) {
    if constexpr (!Is_double<typename Lane<L>::Scalar>::value) {
        L p = splat<L>(1 / 40320.0f);
        p = p * r + 1 / 5040.0f;
        p = p * r + 1 / 720.0f;
        p = p * r + 1 / 120.0f;
        p = p * r + 1 / 24.0f;
        p = p * r + 1 / 6.0f;
        p = p * r + 0.5f;
        return p * r * r + r;
    } else {
        L p = splat<L>(1 / 87178291200.0);
        p = p * r + 1 / 6227020800.0;
        p = p * r + 1 / 479001600.0;
        p = p * r + 1 / 39916800.0;
        p = p * r + 1 / 3628800.0;
        p = p * r + 1 / 362880.0;
        p = p * r + 1 / 40320.0;
        p = p * r + 1 / 5040.0;
        p = p * r + 1 / 720.0;
        p = p * r + 1 / 120.0;
        p = p * r + 1 / 24.0;
        p = p * r + 1 / 6.0;
        p = p * r + 0.5;
        return p * r * r + r;
    }
}

// x = n log(2) + r with |r| <= log(2)/2; log(2) in two parts, the first of few bits so that n times it is
// exact.
template <class L>
RAYFBNN_INLINE L reduce_by_log2(L x, typename Lane<L>::Integer& n) {
    typedef typename Lane<L>::Scalar S;
    const L rounded = round_to_integer<L>(x * S(1.4426950408889634), n);
    if constexpr (!Is_double<S>::value)
        return (x - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
    else
        return (x - rounded * 6.93147180369123816490e-01) - rounded * 1.90821492927058770002e-10;
}

// exp(x) for x <= 0; below the range of normal numbers it stays at the smallest of them.
template <class L>
RAYFBNN_INLINE L exp_of_negative(L x) {
    typename Lane<L>::Integer n;
    const L r = reduce_by_log2<L>(at_least(x, Format<typename Lane<L>::Scalar>::lowest_exponent), n);
    const L scale = power_of_two<L>(n);
    return scale * small_expm1<L>(r) + scale;
}

// tanh. float: x P(x**2)/Q(x**2), minimax for the relative error (1e-8, with rounding 3e-7 at worst and 6e-8
// root mean square, so that 1 may become 1 + 2e-7). double: through expm1, to rounding.
template <class L>
RAYFBNN_INLINE L hyperbolic_tangent(L x) {
    if constexpr (!Is_double<typename Lane<L>::Scalar>::value) {
        x = at_least(at_most(x, 8.4f), -8.4f);
        const L z = x * x;
        L p = splat<L>(2.578324753699235e-08f);
        p = p * z + 3.812745489994995e-05f;
        p = p * z + 0.006315924227237701f;
        p = p * z + 0.23931747674942017f;
        p = p * z + 1.7833458185195923f;
        L q = splat<L>(1.4658991176474956e-06f);
        q = q * z + 0.0005994579987600446f;
        q = q * z + 0.046458709985017776f;
        q = q * z + 0.8337659239768982f;
        q = q * z + 1.7833458185195923f;
        return x * p / q;
    } else {
        const L y = at_most(absolute(x), 20.0) * 2;  // beyond 19.1 it rounds to 1
        typename Lane<L>::Integer n;
        const L r = reduce_by_log2<L>(y, n);
        const L scale = power_of_two<L>(n);
        const L t = scale * small_expm1<L>(r) + (scale - 1);  // expm1(2|x|)
        const L v = t / (t + 2);
        return select(x < 0, -v, v);
    }
}

// log(1 + e) for 0 <= e <= 1: 2 artanh(s), s = e/(2 + e) <= 1/3, by its series (error 1e-9, 3e-18).
template <class L>
RAYFBNN_INLINE L log1p_of_fraction(L e) {
    typedef typename Lane<L>::Scalar S;
    const L s = e / (e + 2), z = s * s;
    constexpr int last = Is_double<S>::value ? 16 : 7;
    L p = splat<L>(S(1) / (2 * last + 1));
#pragma GCC unroll 16
    for (int k = last - 1; k >= 0; --k) p = p * z + S(1) / (2 * k + 1);
    return 2 * s * p;
}

// 1/(1 + exp(-x)), to relative rounding also where it is small.
template <class L>
RAYFBNN_INLINE L logistic(L x) {
    const L e = exp_of_negative<L>(-absolute(x));
    return select(x < 0, e, splat<L>(1)) / (e + 1);
}

// sin(x), and cos(x) to `cosine`, by x = q pi/2 + r, |r| <= pi/4; for |x| below 1e4 (float) or 1e6 (double).
template <class L>
RAYFBNN_INLINE L small_sine(L x, L& cosine) {
    typedef typename Lane<L>::Scalar S;
    typename Lane<L>::Integer quadrant;
    const L q = round_to_integer<L>(x * S(0.63661977236758134), quadrant);
    L r, sine, even;
    if constexpr (!Is_double<S>::value) {
        r = ((x - q * 1.5703125f) - q * 4.837512969970703125e-4f) - q * 7.54978995489188216e-8f;
        const L z = r * r;
        sine = splat<L>(1 / 362880.0f);
        sine = sine * z - 1 / 5040.0f;
        sine = sine * z + 1 / 120.0f;
        sine = sine * z - 1 / 6.0f;
        sine = sine * z * r + r;
        even = splat<L>(-1 / 3628800.0f);
        even = even * z + 1 / 40320.0f;
        even = even * z - 1 / 720.0f;
        even = even * z + 1 / 24.0f;
        even = even * z - 0.5f;
        even = even * z + 1;
    } else {
        r = ((x - q * 1.57079632673412561417e+00) - q * 6.07710050630396597660e-11) -
            q * 2.02226624879595063154e-21;
        const L z = r * r;
        sine = splat<L>(1 / 355687428096000.0);
        sine = sine * z - 1 / 1307674368000.0;
        sine = sine * z + 1 / 6227020800.0;
        sine = sine * z - 1 / 39916800.0;
        sine = sine * z + 1 / 362880.0;
        sine = sine * z - 1 / 5040.0;
        sine = sine * z + 1 / 120.0;
        sine = sine * z - 1 / 6.0;
        sine = sine * z * r + r;
        even = splat<L>(-1 / 6402373705728000.0);
        even = even * z + 1 / 20922789888000.0;
        even = even * z - 1 / 87178291200.0;
        even = even * z + 1 / 479001600.0;
        even = even * z - 1 / 3628800.0;
        even = even * z + 1 / 40320.0;
        even = even * z - 1 / 720.0;
        even = even * z + 1 / 24.0;
        even = even * z - 0.5;
        even = even * z + 1;
    }
    const auto is_odd = (quadrant & 1) != 0;
    const L s = select(is_odd, even, sine), c = select(is_odd, sine, even);
    cosine = select(((quadrant + 1) & 2) != 0, -c, c);
    return select((quadrant & 2) != 0, -s, s);
}

// Of arguments that small_sine does not take, one after the other.
template <class L>
__attribute__((noinline)) static L large_sine(L x, L& cosine) {
    typedef typename Lane<L>::Scalar S;
    S in[Lane<L>::width], sines[Lane<L>::width], cosines[Lane<L>::width];
    __builtin_memcpy(in, &x, sizeof x);
    for (int k = 0; k < Lane<L>::width; ++k) {
        sines[k] = S(__builtin_sin(double(in[k])));
        cosines[k] = S(__builtin_cos(double(in[k])));
    }
    __builtin_memcpy(&cosine, cosines, sizeof x);
    __builtin_memcpy(&x, sines, sizeof x);
    return x;
}

template <class L>
RAYFBNN_INLINE L sine_and_cosine(L x, L& cosine) {
    typedef typename Lane<L>::Scalar S;
    constexpr S limit = Is_double<S>::value ? S(1e6) : S(1e4);
    const L size = absolute(x);
    S sizes[Lane<L>::width];
    __builtin_memcpy(sizes, &size, sizeof size);
    bool is_small = true;
    for (int k = 0; k < Lane<L>::width; ++k) is_small &= !(sizes[k] > limit);
    return is_small ? small_sine<L>(x, cosine) : large_sine<L>(x, cosine);
}

// --- hidden units ---------------------------------------------------------------------------------------

constexpr double ROOT_2 = 1.41421356237309504880;
constexpr double LOG_2 = 0.69314718055994530942;

// Whether `activate` gives the slope, because v alone does not tell it, or not to rounding.
RAYFBNN_INLINE constexpr bool has_kept_slope(int activation) {
    return activation == SOFTPLUS || activation == SOFTPLUS0 || activation == SIN;
}

// v = a(u); eq. 2. Where has_kept_slope(activation), a'(u) goes to `slope`.
template <class L>
RAYFBNN_INLINE L activate(int activation, L u, L& slope) {
    typedef typename Lane<L>::Scalar S;
    switch (activation) {
        case TANH:
            return hyperbolic_tangent<L>(u);
        case SIGMOID:
            return hyperbolic_tangent<L>(u * S(0.5)) * S(0.5) + S(0.5);
        case RELU:
            return at_least<L>(u, 0);
        case SOFTPLUS:
        case SOFTPLUS0: {
            const L e = exp_of_negative<L>(-absolute(u));
            slope = select(u < 0, e, splat<L>(1)) / (e + 1);
            const L v = at_least<L>(u, 0) + log1p_of_fraction<L>(e);
            return activation == SOFTPLUS ? v : v - S(LOG_2);
        }
        case SIN: {  // sqrt(2) sin(sqrt(2) u), as model/layers.py says why
            const L v = sine_and_cosine(u * S(ROOT_2), slope) * S(ROOT_2);
            slope *= 2;
            return v;
        }
        default:
            return u;
    }
}

// a'(u) given v = a(u), of the other activations; eq. 42.
template <class L>
RAYFBNN_INLINE L slope_of(int activation, L v) {
    switch (activation) {
        case TANH:
            return 1 - v * v;
        case SIGMOID:
            return v * (1 - v);
        case RELU:
            return select(v > 0, splat<L>(1), splat<L>(0));
        default:
            return splat<L>(1);
    }
}

// --- sums over units and over cases -----------------------------------------------------------------------

// sums[m][p] += sum over k < n of weights[k * row_step + m * unit_step] * sources[k * stride + p]
template <int UNITS, int CASES, class L>
RAYFBNN_INLINE void multiply_add(
    L (&sums)[UNITS][CASES],
    const typename Lane<L>::Scalar* weights,
    long row_step,
    long unit_step,
    int n,
    const L* sources,
    long stride) {
    for (int k = 0; k < n; ++k) {
        L source[CASES];
#pragma GCC unroll 16
        for (int p = 0; p < CASES; ++p) source[p] = sources[p];
#pragma GCC unroll 16
        for (int m = 0; m < UNITS; ++m) {
            const L weight = splat<L>(weights[m * unit_step]);
#pragma GCC unroll 16
            for (int p = 0; p < CASES; ++p) sums[m][p] += weight * source[p];
        }
        sources += stride;
        weights += row_step;
    }
}

// gradient[i * row_step + j] += sum over p < n of sources[i * stride + p] * slopes[j * stride + p]; eqs. 50-57
template <int ROWS, int UNITS, class L>
RAYFBNN_INLINE void add_products(
    L* gradient, long row_step, int n, const L* sources, const L* slopes, long stride) {
    L sums[ROWS][UNITS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) sums[i][j] = gradient[i * row_step + j];
    for (int p = 0; p < n; ++p) {
        L slope[UNITS];
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) slope[j] = slopes[j * stride + p];
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            const L source = sources[i * stride + p];
#pragma GCC unroll 16
            for (int j = 0; j < UNITS; ++j) sums[i][j] += source * slope[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < UNITS; ++j) gradient[i * row_step + j] = sums[i][j];
}

// --- outputs ----------------------------------------------------------------------------------------------

// -factor d log likelihood / d outputs of one lane of cases, in place of the outputs; eqs. 37-40.
//
// outputs[o * stride], targets[o * stride]; scales[o] is factor * tau of the target for real targets and factor
// for the others, tau[o] the noise precision, alpha that of t noise.
template <class L>
RAYFBNN_INLINE void output_slopes(
    int model,
    L* outputs,
    const L* targets,
    long stride,
    int n_outputs,
    const typename Lane<L>::Scalar* scales,
    const typename Lane<L>::Scalar* tau,
    typename Lane<L>::Scalar alpha) {
    typedef typename Lane<L>::Scalar S;
    switch (model) {
        case GAUSSIAN:
            for (int o = 0; o < n_outputs; ++o)
                outputs[o * stride] = (outputs[o * stride] - targets[o * stride]) * scales[o];
            break;
        case STUDENT_T:
            for (int o = 0; o < n_outputs; ++o) {
                const L residual = outputs[o * stride] - targets[o * stride];
                outputs[o * stride] =
                    residual * (scales[o] * (alpha + 1)) / (residual * residual * tau[o] + alpha);
            }
            break;
        case BINARY:  // sigmoid(v) for a zero, -sigmoid(-v) for a one: no cancellation
            for (int o = 0; o < n_outputs; ++o) {
                const auto is_one = targets[o * stride] > S(0.5);
                const L v = outputs[o * stride];
                const L p = logistic<L>(select(is_one, -v, v)) * scales[o];
                outputs[o * stride] = select(is_one, -p, p);
            }
            break;
        default: {
            L largest = outputs[0];
            for (int o = 1; o < n_outputs; ++o)
                largest = select(outputs[o * stride] > largest, outputs[o * stride], largest);
            L total = splat<L>(0);
            for (int o = 0; o < n_outputs; ++o) {
                outputs[o * stride] = exp_of_negative<L>(outputs[o * stride] - largest);
                total += outputs[o * stride];
            }
            for (int o = 0; o < n_outputs; ++o)
                outputs[o * stride] = (outputs[o * stride] / total - targets[o * stride]) * scales[o];
        }
    }
}

#define RAYFBNN_LOG1P __builtin_log1p
#define RAYFBNN_EXP __builtin_exp
#define RAYFBNN_LOG __builtin_log

// The term of one target in the log likelihood, without what depends on the noise precision alone; eqs. 8, 10,
// 11. Real and binary targets.
RAYFBNN_INLINE double log_likelihood_term(int model, double v, double target, double tau, double alpha) {
    if (model == BINARY) {
        const double u = target > 0.5 ? -v : v;  // -log(1 + exp(u))
        return -((u > 0 ? u : 0) + RAYFBNN_LOG1P(RAYFBNN_EXP(u > 0 ? -u : u)));
    }
    const double z = tau * (target - v) * (target - v);
    return model == GAUSSIAN ? -0.5 * z : -(alpha + 1) / 2 * RAYFBNN_LOG1P(z / alpha);
}

// The term of one case with class targets; eq. 12. outputs and targets are `step` and `target_step` apart.
template <class S>
RAYFBNN_INLINE double class_term(
    const S* outputs, long step, const double* targets, long target_step, int n_outputs) {
    double largest = double(outputs[0]), own = 0, total = 0;
    for (int o = 1; o < n_outputs; ++o)
        if (!(double(outputs[o * step]) <= largest)) largest = double(outputs[o * step]);
    for (int o = 0; o < n_outputs; ++o) {
        const double v = double(outputs[o * step]) - largest;
        total += RAYFBNN_EXP(v);
        if (targets[o * target_step] > 0.5) own = v;
    }
    return own - RAYFBNN_LOG(total);
}

// --- priors -----------------------------------------------------------------------------------------------

// Derivative of -log prior of a parameter w of precision tau, alpha infinite if Gaussian; eqs. 35, 36.
RAYFBNN_INLINE double prior_slope(double w, double tau, double alpha) {
    const double slope = tau * w;
    return alpha > 1e300 ? slope : slope * (alpha + 1) / (alpha + slope * w);
}

// -log prior of it without factors of tau alone.
RAYFBNN_INLINE double prior_term(double w, double tau, double alpha) {
    const double z = tau * w * w;
    return alpha > 1e300 ? 0.5 * z : (alpha + 1) / 2 * RAYFBNN_LOG1P(z / alpha);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
