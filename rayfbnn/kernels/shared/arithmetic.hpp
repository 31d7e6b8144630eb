// The formulas of a network's pass, each written once over a lane L: a CPU's pack of cases or a device's one number.
//
// The pass that they make is in network.hpp; what goes through cases in cpu/source/packed_*.hpp, cuda/source/*.cu. There
// is no #include, as cuda.py puts this text before cuda.cuh. L has
//
//     Value, Scalar                    what a lane holds, and the type of one place of it
//     splat, select, absolute          a Scalar in every place; the choice between two places; |x|
//     at_least(x, a)                   the larger of the two; NaN where x is NaN
//     ratio(a, b)                      a/b, b not 0
//     tanh, sigmoid                    to absolute rounding
//     logistic                         the sigmoid to relative rounding, also where it is small
//     exp_of_negative, log1p_of_fraction    of x <= 0 and 0 <= x <= 1
//     log                              of x >= 1, to absolute rounding; a lane of doubles has it
//     sine_and_cosine(x, cosine)       the sine, and the cosine to its second argument
//
// Energies are computed in double from outputs in the lane's type, as the plain code does. A blow-up has to stay
// visible: every function here turns NaN into NaN, so nothing may be compiled with -ffast-math.
//
// Equations are those of Neal (2022) in model/network.py, model/likelihood.py and model/prior.py.
#ifndef RAYFBNN_ARITHMETIC_HPP
#define RAYFBNN_ARITHMETIC_HPP

#ifndef RAYFBNN_NAMESPACE
#define RAYFBNN_NAMESPACE rayfbnn_arithmetic
#endif

#ifdef __CUDACC__
#define RAYFBNN_INLINE __device__ __forceinline__
#define RAYFBNN_UNROLL _Pragma("unroll")  // registers have no places that are chosen at run time
#define RAYFBNN_EXP exp
#define RAYFBNN_LOG log
#define RAYFBNN_LOG1P log1p
#else
#define RAYFBNN_INLINE static inline __attribute__((always_inline))
#define RAYFBNN_UNROLL
#define RAYFBNN_EXP __builtin_exp
#define RAYFBNN_LOG __builtin_log
#define RAYFBNN_LOG1P __builtin_log1p
#endif

namespace RAYFBNN_NAMESPACE {

// The codes of program.py.
enum Activation { IDENTITY, TANH, SIGMOID, RELU, SOFTPLUS, SOFTPLUS0, SIN };
enum Model { GAUSSIAN, STUDENT_T, BINARY, CLASS };

// --- hidden units -----------------------------------------------------------------------------------------

constexpr double ROOT_2 = 1.41421356237309504880;
constexpr double LOG_2 = 0.69314718055994530942;

// Whether `activate` gives the slope, because v alone does not tell it, or not to rounding.
RAYFBNN_INLINE constexpr bool has_kept_slope(int activation) {
    return activation == SOFTPLUS || activation == SOFTPLUS0 || activation == SIN;
}

// v = a(u); eq. 2. Where has_kept_slope(activation), a'(u) goes to `slope`.
template <class L>
RAYFBNN_INLINE typename L::Value activate(int activation, typename L::Value u, typename L::Value& slope) {
    typedef typename L::Value V;
    typedef typename L::Scalar S;
    switch (activation) {
        case TANH:
            return L::tanh(u);
        case SIGMOID:
            return L::sigmoid(u);
        case RELU:
            return L::at_least(u, 0);
        case SOFTPLUS:
        case SOFTPLUS0: {
            const V e = L::exp_of_negative(-L::absolute(u));
            slope = L::ratio(L::select(u < 0, e, L::splat(1)), e + 1);
            const V v = L::at_least(u, 0) + L::log1p_of_fraction(e);
            return activation == SOFTPLUS ? v : v - S(LOG_2);
        }
        case SIN: {  // sqrt(2) sin(sqrt(2) u), as model/layers.py says why
            const V v = L::sine_and_cosine(u * S(ROOT_2), slope) * S(ROOT_2);
            slope *= 2;
            return v;
        }
        default:
            return u;
    }
}

// a'(u) given v = a(u), of the other activations; eq. 42.
template <class L>
RAYFBNN_INLINE typename L::Value slope_of(int activation, typename L::Value v) {
    switch (activation) {
        case TANH:
            return 1 - v * v;
        case SIGMOID:
            return v * (1 - v);
        case RELU:
            return L::select(v > 0, L::splat(1), L::splat(0));
        default:
            return L::splat(1);
    }
}

// --- outputs ----------------------------------------------------------------------------------------------

// -factor d log likelihood / d outputs of one lane of cases, in place of the outputs, which are `stride` apart;
// eqs. 37-40.
//
// `given` has target(o); scale(o), the factor times tau(o) for real targets and the factor for the others; tau(o), the
// noise precision; and alpha(), that of t noise.
template <class L, class Given>
RAYFBNN_INLINE void output_slopes(
    int model, typename L::Value* outputs, long stride, int n_outputs, const Given& given) {
    typedef typename L::Value V;
    typedef typename L::Scalar S;
    switch (model) {
        case GAUSSIAN:
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o)
                outputs[o * stride] = (outputs[o * stride] - given.target(o)) * given.scale(o);
            break;
        case STUDENT_T:
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o) {
                const V residual = outputs[o * stride] - given.target(o);
                const V numerator = residual * (given.scale(o) * (given.alpha() + 1));
                outputs[o * stride] = L::ratio(numerator, residual * residual * given.tau(o) + given.alpha());
            }
            break;
        case BINARY:  // sigmoid(v) for a zero, -sigmoid(-v) for a one: no cancellation
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o) {
                const auto is_one = given.target(o) > S(0.5);
                const V v = outputs[o * stride];
                const V p = L::logistic(L::select(is_one, -v, v)) * given.scale(o);
                outputs[o * stride] = L::select(is_one, -p, p);
            }
            break;
        default: {
            V largest = outputs[0];
            RAYFBNN_UNROLL
            for (int o = 1; o < n_outputs; ++o)
                largest = L::select(outputs[o * stride] > largest, outputs[o * stride], largest);
            V total = L::splat(0);
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o) {
                outputs[o * stride] = L::exp_of_negative(outputs[o * stride] - largest);
                total += outputs[o * stride];
            }
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o)
                outputs[o * stride] = (L::ratio(outputs[o * stride], total) - given.target(o)) * given.scale(o);
        }
    }
}

// The log likelihood of one lane of cases without what depends on noise precisions alone, each target's term times its
// weight; eqs. 8, 10-12. L is a lane of doubles.
//
// `given` has output(o), target(o) and weight(o), a class target's being weight(0); and of real targets tau(o), the noise
// precision, and alpha(), that of t noise.
template <class L, class Given>
RAYFBNN_INLINE typename L::Value log_likelihood_terms(int model, int n_outputs, const Given& given) {
    typedef typename L::Value V;
    V sum = L::splat(0);
    if (model == CLASS) {
        V largest = given.output(0), own = sum;
        RAYFBNN_UNROLL
        for (int o = 1; o < n_outputs; ++o) {
            const V v = given.output(o);
            largest = L::select(v > largest, v, largest);
        }
        RAYFBNN_UNROLL
        for (int o = 0; o < n_outputs; ++o) {
            const V v = given.output(o) - largest;
            sum += L::exp_of_negative(v);
            own = L::select(given.target(o) > 0.5, v, own);
        }
        return (own - L::log(sum)) * given.weight(0);
    }
    RAYFBNN_UNROLL
    for (int o = 0; o < n_outputs; ++o) {
        const V v = given.output(o), target = given.target(o);
        if (model == BINARY) {  // -log(1 + exp(u))
            const V u = L::select(target > 0.5, -v, v);
            sum -= (L::at_least(u, 0) + L::log1p_of_fraction(L::exp_of_negative(-L::absolute(u)))) * given.weight(o);
            continue;
        }
        const V z = (target - v) * (target - v) * given.tau(o);
        if (model == GAUSSIAN)
            sum -= z * 0.5 * given.weight(o);
        else
            sum -= L::log(z / given.alpha() + 1) * ((given.alpha() + 1) / 2) * given.weight(o);
    }
    return sum;
}

// --- priors -----------------------------------------------------------------------------------------------

// Whether the alpha of a parameter's prior stands for infinity.
RAYFBNN_INLINE constexpr bool is_gaussian(double alpha) { return alpha > 1e300; }

// Derivative of -log prior of a parameter w of precision tau; eqs. 35, 36. In double until the end: precisions beyond
// the range of float have real mass under shapes such as 0.0005.
RAYFBNN_INLINE double prior_slope(double w, double tau, double alpha) {
    const double slope = tau * w;
    return is_gaussian(alpha) ? slope : slope * (alpha + 1) / (alpha + slope * w);
}

// -log prior of it without factors of tau alone.
RAYFBNN_INLINE double prior_term(double w, double tau, double alpha) {
    const double z = tau * w * w;
    return is_gaussian(alpha) ? 0.5 * z : (alpha + 1) / 2 * RAYFBNN_LOG1P(z / alpha);
}

// Of Gaussian parameters whose common precision, a Gamma's, is integrated out: -log density is
// shape/2 log(rate + sum a w**2), whose slopes are those of the precisions a times a factor. `sum` is rate + sum a w**2.
RAYFBNN_INLINE double integrated_factor(double sum, double shape) { return shape / sum; }
RAYFBNN_INLINE double integrated_term(double sum, double shape) { return shape / 2 * RAYFBNN_LOG(sum); }

// Of a coordinate x with the density of the log of a Gamma variable of shape `half` and mean `mean`: -log density
// without constants, and its derivative; `ratio` is exp(x)/mean. As a precision's log x is bounded.
constexpr double MOST_LOG_PRECISION = 600;  // MAX_LOG_PRECISION of model/prior.py

RAYFBNN_INLINE double bounded(double x) {
    return x < -MOST_LOG_PRECISION ? -MOST_LOG_PRECISION : x > MOST_LOG_PRECISION ? MOST_LOG_PRECISION : x;
}
RAYFBNN_INLINE double log_gamma_term(double half, double ratio, double x) { return half * (ratio - x); }
RAYFBNN_INLINE double log_gamma_slope(double half, double ratio) { return half * (ratio - 1); }

}  // namespace RAYFBNN_NAMESPACE
#endif
