// Formulas of predictive distributions, each written once over a lane D of doubles, as in arithmetic.hpp: the tails of
// normal distributions, counts, and times under hazards that are constant in pieces (model/likelihood/survival.py).
//
// Besides what arithmetic.hpp lists, the lane has at_most(x, a), root(x) for x >= 0, and small_expm1(x), which is
// exp(x) - 1 for |x| <= 0.34. This file includes nothing either.
#ifndef RAYFBNN_PREDICTIVE_HPP
#define RAYFBNN_PREDICTIVE_HPP

#ifdef __CUDACC__
#define RAYFBNN_FORMULA static __device__ __forceinline__
#define RAYFBNN_ARRAY static __constant__  // a device cannot read an array of the host
#define RAYFBNN_UNROLL_SERIES _Pragma("unroll")
#else
#define RAYFBNN_FORMULA RAYFBNN_INLINE
#define RAYFBNN_ARRAY constexpr
#define RAYFBNN_UNROLL_SERIES _Pragma("GCC unroll 16")
#endif

namespace RAYFBNN_NAMESPACE {

constexpr double MOST_LOG = 680;                     // of a precision, so that double can hold its exponential
constexpr double FROM_EXPANSION = 16;                // counts below this are summed one by one
constexpr double MOST_LOG_RATE = 690.7755278982137;  // log(1e300)
constexpr double MOST_LOG_HAZARD = 340;              // as in survival.py

// exp(z**2 / 2) P(Z > z) of a standard normal Z is t times a polynomial in t = 5 / (z + 5): interpolated at Chebyshev's
// nodes for z up to 38, with a relative error of 1e-11.
RAYFBNN_ARRAY double NORMAL_TAIL[15] = {
    0.079788472517924314, 0.079787752569649914, 0.076610229293104529, 0.070066378937260157,
    0.062089595064041422, 0.044457092713322537, 0.056460334015914014, -0.02215037132720787,
    0.10062263383793421, -0.09676020257683636, 0.076490355346525277, -0.0172700930083972,
    -0.023880759598560154, 0.016992008984325683, -0.0033034267703724992};

// Coefficients of the functions c_0(eta) to c_4(eta) in Temme's uniform expansion of the incomplete gamma function,
// the NIST Handbook, eq. 8.12.7. They were derived by 8.12.11 in rational numbers.
RAYFBNN_ARRAY double TEMME_0[14] = {
    -0.33333333333333331, 0.083333333333333329, -0.014814814814814815, 0.0011574074074074073,
    0.00035273368606701942, -0.0001787551440329218, 3.9192631785224377e-05, -2.185448510679992e-06,
    -1.85406221071516e-06, 8.2967113409530865e-07, -1.7665952736826078e-07, 6.7078535434014984e-09,
    1.0261809784240309e-08, -4.3820360184533529e-09};
RAYFBNN_ARRAY double TEMME_1[11] = {
    -0.0018518518518518519, -0.003472222222222222, 0.0026455026455026454, -0.00099022633744855963,
    0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.6491609160811098e-06,
    -1.6120900894563446e-06, 4.647127802807434e-09, 1.3786334469157209e-07};
RAYFBNN_ARRAY double TEMME_2[9] = {
    0.0041335978835978834, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
    -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05, 3.4235787340961378e-08,
    1.3721957309062934e-06};
RAYFBNN_ARRAY double TEMME_3[7] = {
    0.00064943415637860077, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
    -7.5618016718839766e-05, -2.3965051138672968e-07, 1.1082654115347302e-05};
RAYFBNN_ARRAY double TEMME_4[5] = {
    -0.00086188829091671173, 0.00078403922172006662, -0.00029907248030319018, -1.4638452578843418e-06,
    6.6414982154651219e-05};

template <class D>
struct Predictive {
    typedef typename D::Value V;

    // exp(-x) for x >= 0, which is zero where it is below the range of numbers.
    RAYFBNN_FORMULA V decay(V x) {
        return D::select(x > 700, D::splat(0), D::exp_of_negative(-x));
    }

    // --- normal distributions ---

    // exp(z**2 / 2) P(Z > z) of a standard normal Z, for z >= 0.
    RAYFBNN_FORMULA V scaled_normal_tail(V z) {
        const V t = 5 / (z + 5);
        return polynomial(NORMAL_TAIL, t) * t;
    }

    // --- counts ---

    // A count k of each place: log(k), and the probability of k if the rate is k; for k = 0 both are those of 1.
    struct Count {
        V k, log, peak;
    };

    template <int N>
    RAYFBNN_FORMULA V polynomial(const double (&c)[N], V x) {
        V sum = D::splat(c[N - 1]);
        RAYFBNN_UNROLL_SERIES
        for (int n = N - 2; n >= 0; --n) sum = sum * x + c[n];
        return sum;
    }

    // exp(d) - 1 - d, with relative precision.
    RAYFBNN_FORMULA V exponential_excess(V d) {
        constexpr double near = 0.34;
        const V r = D::at_most(D::at_least(d, -near), near);
        V p = D::splat(1 / 87178291200.0);
        double factorial = 87178291200.0;
        RAYFBNN_UNROLL_SERIES
        for (int n = 14; n > 2; --n) factorial /= n, p = p * r + 1 / factorial;
        return D::select(D::absolute(d) < near, p * r * r, D::exponential(d) - 1 - d);
    }

    // P(Y = k) of a Poisson variable Y with the logarithm v of its rate.
    RAYFBNN_FORMULA V count_mass(V v, const Count& count) {
        const V d = v - count.log;
        const V of_zero = D::exponential(d), of_others = exponential_excess(d) * count.k;
        const auto is_zero = count.k < 1;
        return decay(D::select(is_zero, of_zero, of_others)) * D::select(is_zero, D::splat(1), count.peak);
    }

    // P(Y <= k) and P(Y = k) of a Poisson variable, for k from 16 on. With
    // eta**2 / 2 = x/k - 1 - log(x/k) all parts have the factor exp(-k eta**2 / 2).
    RAYFBNN_FORMULA void large_count(V v, const Count& count, V& cdf, V& mass) {
        const V d = v - count.log, half_square = exponential_excess(d);
        const V exponent = D::at_most(half_square * count.k, 1e4);
        const V e = decay(exponent);
        const V size = D::root(2 * half_square), inverse = 1 / count.k;
        const V eta = D::at_most(size, 2), signed_eta = D::select(d < 0, -eta, eta);
        V sum = polynomial(TEMME_4, signed_eta) * inverse + polynomial(TEMME_3, signed_eta);
        sum = sum * inverse + polynomial(TEMME_2, signed_eta);
        sum = sum * inverse + polynomial(TEMME_1, signed_eta);
        sum = sum * inverse + polynomial(TEMME_0, signed_eta);
        const V tail = e * scaled_normal_tail(D::root(2 * exponent));
        // Q(k, x), and then Q(k + 1, x) = Q(k, x) + P(Y = k).
        mass = e * count.peak;
        cdf = D::select(d > 0, tail, 1 - tail) + e * sum * (0.39894228040143268 / D::root(count.k)) + mass;
    }

    // The same for k up to `last`, which is below 16.
    RAYFBNN_FORMULA void small_count(V v, V k, int last, V& cdf, V& mass) {
        const V rate = D::exponential(v);
        V p = decay(rate);
        const V bounded_rate = D::at_most(rate, 1e3);
        cdf = p, mass = p;
        for (int j = 1; j <= last; ++j) {
            p *= bounded_rate * (1.0 / j);
            cdf += D::select(k < j, D::splat(0), p);
            mass = D::select(k < j, mass, p);
        }
    }

    // --- survival times ---

    RAYFBNN_FORMULA V bounded_log_hazard(V v) {
        return D::at_most(D::at_least(v, -MOST_LOG_HAZARD), MOST_LOG_HAZARD);
    }

    // F, f and f' by the logarithm of a time, given the integral of the hazard up to the time, and the hazard then.
    RAYFBNN_FORMULA void time_distribution(V integral, V hazard, V time, V& cdf, V& density, V& slope) {
        const V survival = decay(integral), rate = D::at_most(hazard * time, 1e150);
        cdf = 1 - survival;
        density = survival * rate;
        slope = density * (1 - rate);
    }

    // The mean time and the mean square of the time, added up piece by piece.
    struct TimeMoments {
        V before, mean, square;  // the hazard's integral up to the piece, and the moments so far
    };

    // Adds a piece of the hazard exp(v) from `start` on, of the given length, which is negative for the last one.
    RAYFBNN_FORMULA void add_piece(TimeMoments& moments, V v, double start, double length) {
        const V survival = decay(moments.before), inverse = D::exponential(-v);
        V gone = D::splat(1), late = D::splat(0);
        if (length > 0) {
            const V d = D::exponential(v) * length, left = decay(d);
            constexpr double near = 0.34;
            gone = D::select(d < near, -D::small_expm1(-D::at_most(d, near)), 1 - left);
            late = D::at_most(d, 1e300) * left;
            moments.before += d;
        }
        moments.mean += survival * gone * inverse;
        moments.square += 2 * survival * (start * gone * inverse + (gone - late) * inverse * inverse);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
