// Probabilities of counts given the logarithm of their rate.
#ifndef RAYFBNN_COUNTS_HPP
#define RAYFBNN_COUNTS_HPP

#include "block.hpp"
#include "normal.hpp"

namespace RAYFBNN_NAMESPACE {

// Coefficients of the functions c_0(eta) to c_4(eta) in Temme's uniform expansion of the incomplete gamma function,
// the NIST Handbook, eq. 8.12.7. They were derived by 8.12.11 in rational numbers.
constexpr double TEMME_0[] = {
    -0.33333333333333331, 0.083333333333333329, -0.014814814814814815, 0.0011574074074074073,
    0.00035273368606701942, -0.0001787551440329218, 3.9192631785224377e-05, -2.185448510679992e-06,
    -1.85406221071516e-06, 8.2967113409530865e-07, -1.7665952736826078e-07, 6.7078535434014984e-09,
    1.0261809784240309e-08, -4.3820360184533529e-09};
constexpr double TEMME_1[] = {
    -0.0018518518518518519, -0.003472222222222222, 0.0026455026455026454, -0.00099022633744855963,
    0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.6491609160811098e-06,
    -1.6120900894563446e-06, 4.647127802807434e-09, 1.3786334469157209e-07};
constexpr double TEMME_2[] = {
    0.0041335978835978834, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
    -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05, 3.4235787340961378e-08,
    1.3721957309062934e-06};
constexpr double TEMME_3[] = {
    0.00064943415637860077, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
    -7.5618016718839766e-05, -2.3965051138672968e-07, 1.1082654115347302e-05};
constexpr double TEMME_4[] = {
    -0.00086188829091671173, 0.00078403922172006662, -0.00029907248030319018, -1.4638452578843418e-06,
    6.6414982154651219e-05};

constexpr double FROM_EXPANSION = 16;  // counts below this are summed one by one
constexpr double MOST_LOG_RATE = 690.7755278982137;  // log(1e300)

// A count k of each place: log(k), and the probability of k if the rate is k; for k = 0 both are those of 1.
struct Count {
    PackDouble k, log, peak;
};

template <int N>
RAYFBNN_INLINE PackDouble polynomial(const double (&c)[N], PackDouble x) {
    PackDouble sum = splat<PackDouble>(c[N - 1]);
#pragma GCC unroll 16
    for (int n = N - 2; n >= 0; --n) sum = sum * x + c[n];
    return sum;
}

// exp(d) - 1 - d, with relative precision.
RAYFBNN_INLINE PackDouble exponential_excess(PackDouble d) {
    typedef Lane<PackDouble> D;
    constexpr double near = 0.34;
    const PackDouble r = D::at_most(D::at_least(d, -near), near);
    PackDouble p = splat<PackDouble>(1 / 87178291200.0);
    double factorial = 87178291200.0;
#pragma GCC unroll 16
    for (int n = 14; n > 2; --n) factorial /= n, p = p * r + 1 / factorial;
    return D::select(D::absolute(d) < near, p * r * r, D::exponential(d) - 1 - d);
}

// P(Y = k) of a Poisson variable Y with the logarithm v of its rate.
RAYFBNN_INLINE PackDouble count_mass(PackDouble v, const Count& count) {
    typedef Lane<PackDouble> D;
    const PackDouble d = v - count.log;
    const PackDouble of_zero = D::exponential(d), of_others = exponential_excess(d) * count.k;
    const auto is_zero = count.k < 1;
    return decay(D::select(is_zero, of_zero, of_others)) * D::select(is_zero, D::splat(1), count.peak);
}

// P(Y <= k) and P(Y = k) of a Poisson variable, for k from 16 on. With
// eta**2 / 2 = x/k - 1 - log(x/k) all parts have the factor exp(-k eta**2 / 2).
RAYFBNN_INLINE void large_count(PackDouble v, const Count& count, PackDouble& cdf, PackDouble& mass) {
    typedef Lane<PackDouble> D;
    const PackDouble d = v - count.log, half_square = exponential_excess(d);
    const PackDouble exponent = D::at_most(half_square * count.k, 1e4);
    const PackDouble e = decay(exponent);
    const PackDouble size = D::root(2 * half_square), inverse = 1 / count.k;
    const PackDouble eta = D::at_most(size, 2), signed_eta = D::select(d < 0, -eta, eta);
    PackDouble sum = polynomial(TEMME_4, signed_eta) * inverse + polynomial(TEMME_3, signed_eta);
    sum = sum * inverse + polynomial(TEMME_2, signed_eta);
    sum = sum * inverse + polynomial(TEMME_1, signed_eta);
    sum = sum * inverse + polynomial(TEMME_0, signed_eta);
    const PackDouble tail = e * scaled_normal_tail(D::root(2 * exponent));
    // Q(k, x), and then Q(k + 1, x) = Q(k, x) + P(Y = k).
    mass = e * count.peak;
    cdf = D::select(d > 0, tail, 1 - tail) + e * sum * (0.39894228040143268 / D::root(count.k)) + mass;
}

// The same for k up to `last`, which is below 16.
RAYFBNN_INLINE void small_count(PackDouble v, PackDouble k, int last, PackDouble& cdf, PackDouble& mass) {
    typedef Lane<PackDouble> D;
    const PackDouble rate = D::exponential(v);
    PackDouble p = decay(rate);
    const PackDouble bounded_rate = D::at_most(rate, 1e3);
    cdf = p, mass = p;
    for (int j = 1; j <= last; ++j) {
        p *= bounded_rate * (1.0 / j);
        cdf += D::select(k < j, D::splat(0), p);
        mass = D::select(k < j, mass, p);
    }
}

}  // namespace RAYFBNN_NAMESPACE
#endif
