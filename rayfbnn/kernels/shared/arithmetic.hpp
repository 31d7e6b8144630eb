// The formulas of a network's pass, each written once over a lane L: a pack of cases on a CPU, one number on a device.
//
// network.hpp puts the formulas together to a pass. The code that goes through the cases is in cpu/source/packed_*.hpp
// and cuda/source/*.cu. This file includes nothing, because cuda/generate.py puts its text before that of
// cuda.cuh. L has
//
//     Value, Scalar                    the type of a lane's values, and the type of one place of them
//     splat, select, absolute          a Scalar in every place; a choice between two values, place by place; |x|
//     at_least(x, a)                   the larger of x and a; NaN where x is NaN
//     ratio(a, b)                      a/b, b not 0
//     tanh, sigmoid                    with absolute rounding errors
//     logistic                         the sigmoid with relative rounding errors, even where it is small
//     exp_of_negative                  exp(x) for x <= 0
//     exponential                      exp(x), infinite where it is above the range of numbers
//     log1p_of_fraction                log(1 + x) for 0 <= x <= 1
//     log                              log(x) for x >= 1, with absolute rounding errors; only for lanes of doubles
//     sine_and_cosine(x, cosine)       returns the sine and writes the cosine to its second argument
//
// Energies are computed in double from outputs in the lane's type, as in the array code. A trajectory that diverges
// must stay visible: every function here turns NaN into NaN, so nothing may be compiled with -ffast-math.
//
// Numbers of equations are those of Neal (2022), as in model/network.py, model/likelihood/ and model/prior.py.
#ifndef RAYFBNN_ARITHMETIC_HPP
#define RAYFBNN_ARITHMETIC_HPP

#ifndef RAYFBNN_NAMESPACE
#define RAYFBNN_NAMESPACE rayfbnn_arithmetic
#endif

#ifdef __CUDACC__
#define RAYFBNN_INLINE __device__ __forceinline__
#define RAYFBNN_UNROLL _Pragma("unroll")  // registers cannot be indexed at run time
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

// The codes of kernels/network_plan.py.
enum Activation { IDENTITY, TANH, SIGMOID, RELU, SOFTPLUS, SOFTPLUS0, SIN };
enum Model { GAUSSIAN, STUDENT_T, BINARY, CLASS, COUNT, SURVIVAL, HETEROSCEDASTIC, DISPERSED_COUNT };

// --- hidden units -----------------------------------------------------------------------------------------

constexpr double ROOT_2 = 1.41421356237309504880;
constexpr double LOG_2 = 0.69314718055994530942;
constexpr double LOG_2_PI = 1.83787706640934548356;

// True if `activate` computes the slope, because it cannot be computed from v alone, or not accurately.
RAYFBNN_INLINE constexpr bool has_kept_slope(int activation) {
    return activation == SOFTPLUS || activation == SOFTPLUS0 || activation == SIN;
}

// v = a(u); eq. 2. If has_kept_slope(activation), a'(u) is written to `slope`.
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
        case SIN: {  // sqrt(2) sin(sqrt(2) u), for the reason in model/layers.py
            const V v = L::sine_and_cosine(u * S(ROOT_2), slope) * S(ROOT_2);
            slope *= 2;
            return v;
        }
        default:
            return u;
    }
}

// a'(u) given v = a(u), for activations without a kept slope; eq. 42.
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

// log(1 + exp(x))
template <class L>
RAYFBNN_INLINE typename L::Value softplus(typename L::Value x) {
    return L::at_least(x, 0) + L::log1p_of_fraction(L::exp_of_negative(-L::absolute(x)));
}

// The mean of a count, exp(v), or the hazard's integral over the time at risk, whose logarithm is second(o).
template <class L, class Given>
RAYFBNN_INLINE typename L::Value rate_of(int model, typename L::Value v, int o, const Given& given) {
    return L::exponential(model == SURVIVAL ? v + given.second(o) : v);
}

// log Gamma(y + r)/(Gamma(r) r^y) for a count y and a shape r, between 1e-12 and 1e12.
//
// With a = r + 8 and b = y + a, Gamma(y + r)/Gamma(r) is Gamma(b)/Gamma(a) divided by the product of (r + y + k)/(r + k)
// over k = 0, ..., 7. log Gamma(b)/Gamma(a) is a difference of Stirling series, which are accurate to 1e-11 from 8 on.
template <class L>
RAYFBNN_INLINE typename L::Value log_gamma_ratio(typename L::Value y, double r) {
    typedef typename L::Value V;
    V above = y + r;
    double below = r;
    RAYFBNN_UNROLL
    for (int k = 1; k < 8; ++k) above *= y + (r + k), below *= r + k;
    const double a = r + 8;
    const V b = y + a, x = y / a;
    const V log_of_ratio =  // log(b/a)
        L::select(x > 1, L::log(L::at_least(x, 1) + 1), L::log1p_of_fraction(L::select(x > 1, L::splat(1), x)));
    const V s = 1 / b, square = s * s;
    const double t = 1 / a, square_of_a = t * t;
    const V series = s * (1. / 12 - square * (1. / 360 - square * (1. / 1260 - square / 1680)));
    const double series_of_a = t * (1. / 12 - square_of_a * (1. / 360 - square_of_a * (1. / 1260 - square_of_a / 1680)));
    const V stirling = (b - 0.5) * log_of_ratio - y + (series - series_of_a);
    return stirling + y * RAYFBNN_LOG1P(8 / r) - L::log(above / below);
}

// Replaces the outputs of one lane of cases, which are `stride` apart, by -factor d log likelihood / d outputs;
// eqs. 37-40.
//
// `given` has target(o), the noise precision tau(o), the alpha() of t noise, and scale(o), which is factor * tau(o) for
// real targets and the factor for others. Counts and times have two numbers, target(o) and second(o): the count and
// -log of its factorial, or whether there was an event and the log of the time. The shape r of DISPERSED_COUNT is tau(o),
// and its logarithm log_tau(o) (model/likelihood/dispersed_count.py). The outputs of HETEROSCEDASTIC are the
// means and then the log precisions s of the noise; alpha() is the log of its least variance a: the precision is
// 1/(exp(-s) + exp(a)).
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
        case BINARY:  // sigmoid(v) for a zero and -sigmoid(-v) for a one, without cancellation
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o) {
                const auto is_one = given.target(o) > S(0.5);
                const V v = outputs[o * stride];
                const V p = L::logistic(L::select(is_one, -v, v)) * given.scale(o);
                outputs[o * stride] = L::select(is_one, -p, p);
            }
            break;
        case COUNT:
        case SURVIVAL:
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o)
                outputs[o * stride] =
                    (rate_of<L>(model, outputs[o * stride], o, given) - given.target(o)) * given.scale(o);
            break;
        case DISPERSED_COUNT:  // (y + r) exp(v)/(r + exp(v)) - y
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs; ++o) {
                const V share = L::logistic(outputs[o * stride] - given.log_tau(o));
                outputs[o * stride] = ((given.target(o) + given.tau(o)) * share - given.target(o)) * given.scale(o);
            }
            break;
        case HETEROSCEDASTIC:
            RAYFBNN_UNROLL
            for (int o = 0; o < n_outputs / 2; ++o) {
                const int of_precision = o + n_outputs / 2;
                const V s = outputs[of_precision * stride], excess = softplus<L>(s + given.alpha());
                const V residual = outputs[o * stride] - given.target(o);
                const V slope = L::exponential(s - excess) * residual;
                outputs[o * stride] = slope * given.scale(o);
                outputs[of_precision * stride] =
                    L::exp_of_negative(-excess) * (slope * residual - 1) * S(0.5) * given.scale(of_precision);
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

// The log likelihood of one lane of cases, without terms that depend on noise precisions alone. Each target's term is
// multiplied by the target's weight; eqs. 8, 10-12. L is a lane of doubles.
//
// `given` has output(o), target(o), second(o), alpha() and weight(o) as for output_slopes; a class target's weight is
// weight(0). For real targets it also has the noise precision tau(o), and for DISPERSED_COUNT tau(o) and log_tau(o).
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
    if (model == HETEROSCEDASTIC) {
        RAYFBNN_UNROLL
        for (int o = 0; o < n_outputs / 2; ++o) {
            const V s = given.output(o + n_outputs / 2), residual = given.target(o) - given.output(o);
            const V log_precision = s - softplus<L>(s + given.alpha());
            const V z = L::exponential(log_precision) * residual * residual;
            sum += (log_precision - z - LOG_2_PI) * 0.5 * given.weight(o);
        }
        return sum;
    }
    RAYFBNN_UNROLL
    for (int o = 0; o < n_outputs; ++o) {
        const V v = given.output(o), target = given.target(o);
        if (model == BINARY) {  // -log(1 + exp(u))
            const V u = L::select(target > 0.5, -v, v);
            sum -= softplus<L>(u) * given.weight(o);
            continue;
        }
        if (model == COUNT || model == SURVIVAL) {  // with a target of 0, v may be -infinity
            V term = L::select(target > 0, target * v, L::splat(0)) - rate_of<L>(model, v, o, given);
            if (model == COUNT) term += given.second(o);
            sum += term * given.weight(o);
            continue;
        }
        if (model == DISPERSED_COUNT) {
            const V excess = softplus<L>(v - given.log_tau(o));
            V term = L::select(target > 0, target * v, L::splat(0)) - (target + given.tau(o)) * excess;
            term += log_gamma_ratio<L>(target, given.tau(o)) + given.second(o);
            sum += term * given.weight(o);
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

// True if the alpha of a parameter's prior stands for infinity, so that the prior is Gaussian.
RAYFBNN_INLINE constexpr bool is_gaussian(double alpha) { return alpha > 1e300; }

// Derivative of -log prior of a parameter w with precision tau; eqs. 35, 36. It is in double until the end, because
// precisions beyond the range of float have noticeable probability under shapes such as 0.0005.
RAYFBNN_INLINE double prior_slope(double w, double tau, double alpha) {
    const double slope = tau * w;
    return is_gaussian(alpha) ? slope : slope * (alpha + 1) / (alpha + slope * w);
}

// -log prior of the parameter, without terms that depend on tau alone.
RAYFBNN_INLINE double prior_term(double w, double tau, double alpha) {
    const double z = tau * w * w;
    return is_gaussian(alpha) ? 0.5 * z : (alpha + 1) / 2 * RAYFBNN_LOG1P(z / alpha);
}

// Gaussian parameters whose common precision has a Gamma prior and is integrated out: -log density is
// shape/2 log(rate + sum a w**2). Its slopes are those with the precisions a times a factor. `sum` is rate + sum a
// w**2.
RAYFBNN_INLINE double integrated_factor(double sum, double shape) { return shape / sum; }
RAYFBNN_INLINE double integrated_term(double sum, double shape) { return shape / 2 * RAYFBNN_LOG(sum); }

// A coordinate x that is distributed as the log of a Gamma variable with shape `half` and mean `mean`: -log density
// without constants, and its derivative. `ratio` is exp(x)/mean. As the log of a precision, x is bounded.
constexpr double MOST_LOG_PRECISION = 600;  // MAX_LOG_PRECISION of model/prior.py

RAYFBNN_INLINE double bounded(double x) {
    return x < -MOST_LOG_PRECISION ? -MOST_LOG_PRECISION : x > MOST_LOG_PRECISION ? MOST_LOG_PRECISION : x;
}
RAYFBNN_INLINE double log_gamma_term(double half, double ratio, double x) { return half * (ratio - x); }
RAYFBNN_INLINE double log_gamma_slope(double half, double ratio) { return half * (ratio - 1); }

}  // namespace RAYFBNN_NAMESPACE
#endif
