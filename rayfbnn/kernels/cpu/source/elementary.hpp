// Elementary functions of packs, which make a pack a lane of shared/arithmetic.hpp.
#ifndef RAYFBNN_ELEMENTARY_HPP
#define RAYFBNN_ELEMENTARY_HPP

#include "packs.hpp"

namespace RAYFBNN_NAMESPACE {

// Conversions between a floating-point number and the integer with the same bits.
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
RAYFBNN_INLINE PackInt bits_of(PackFloat x) { return (PackInt)x; }
RAYFBNN_INLINE PackLong bits_of(PackDouble x) { return (PackLong)x; }
RAYFBNN_INLINE PackFloat value_of(PackInt bits) { return (PackFloat)bits; }
RAYFBNN_INLINE PackDouble value_of(PackLong bits) { return (PackDouble)bits; }

template <class S>
struct Format;
template <>
struct Format<float> {
    static constexpr float magic = 12582912.0f;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float lowest_exponent = -87.0f;  // its exponential is still a normal number
    static constexpr float highest_exponent = 88.0f;
};
template <>
struct Format<double> {
    static constexpr double magic = 6755399441055744.0;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double lowest_exponent = -708.0;
    static constexpr double highest_exponent = 709.0;
};

// Sines and cosines of arguments too large for Lane<L>::small_sine, computed one after the other.
template <class L>
__attribute__((noinline)) static L large_sine(L x, L& cosine) {
    typedef typename Places<L>::Scalar S;
    S in[Places<L>::width], sines[Places<L>::width], cosines[Places<L>::width];
    __builtin_memcpy(in, &x, sizeof x);
    for (int k = 0; k < Places<L>::width; ++k) {
        sines[k] = S(__builtin_sin(double(in[k])));
        cosines[k] = S(__builtin_cos(double(in[k])));
    }
    __builtin_memcpy(&cosine, cosines, sizeof x);
    __builtin_memcpy(&x, sines, sizeof x);
    return x;
}

// A pack as a lane of arithmetic.hpp.
template <class L>
struct Lane : Places<L> {
    typedef L Value;
    typedef typename Places<L>::Scalar Scalar;
    typedef typename Places<L>::Integer Integer;
    typedef Scalar S;
    typedef Format<S> F;
    static constexpr bool is_double = sizeof(S) == sizeof(double);

    RAYFBNN_INLINE L splat(S x) { return RAYFBNN_NAMESPACE::splat<L>(x); }
    // Depending on the compiler, a comparison gives a pack of int, of long or of long long.
    template <class M>
    RAYFBNN_INLINE L select(M chosen, L a, L b) {
        return chosen ? a : b;
    }
    RAYFBNN_INLINE L larger(L a, L b) { return RAYFBNN_NAMESPACE::larger(a, b); }
    RAYFBNN_INLINE L absolute(L x) { return larger(-x, x); }
    RAYFBNN_INLINE L at_most(L x, S bound) { return smaller(splat(bound), x); }
    RAYFBNN_INLINE L at_least(L x, S bound) { return larger(splat(bound), x); }
    RAYFBNN_INLINE L ratio(L a, L b) { return a / b; }

    // The integer nearest to x, as a floating-point number and as an integer, for |x| < 2**22. Adding 1.5 * 2**23 (in
    // double, 1.5 * 2**52) leaves the integer in the low bits.
    RAYFBNN_INLINE L round_to_integer(L x, Integer& integer) {
        const L shifted = x + F::magic;
        integer = bits_of(shifted) - bits_of(F::magic);
        return shifted - F::magic;
    }
    RAYFBNN_INLINE L power_of_two(Integer n) { return value_of((n + F::bias) << F::mantissa); }

    // exp(r) - 1 for |r| <= log(2)/2, by the Taylor series up to r**8/8! (float, relative error 2e-9) or r**14/14!
    // (double, 2e-18).
    RAYFBNN_INLINE L small_expm1(L r) {
        if constexpr (!is_double) {
            L p = splat(1 / 40320.0f);
            p = p * r + 1 / 5040.0f;
            p = p * r + 1 / 720.0f;
            p = p * r + 1 / 120.0f;
            p = p * r + 1 / 24.0f;
            p = p * r + 1 / 6.0f;
            p = p * r + 0.5f;
            return p * r * r + r;
        } else {
            L p = splat(1 / 87178291200.0);
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

    // x = n log(2) + r with |r| <= log(2)/2. Here log(2) is split in two parts; the first has so few bits that n times
    // it is exact.
    RAYFBNN_INLINE L reduce_by_log2(L x, Integer& n) {
        const L rounded = round_to_integer(x * S(1.4426950408889634), n);
        if constexpr (!is_double)
            return (x - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
        else
            return (x - rounded * 6.93147180369123816490e-01) - rounded * 1.90821492927058770002e-10;
    }

    // exp(x) for x <= 0. Below the range of normal numbers the result stays at the smallest of them.
    RAYFBNN_INLINE L exp_of_negative(L x) {
        Integer n;
        const L r = reduce_by_log2(at_least(x, F::lowest_exponent), n);
        const L scale = power_of_two(n);
        return scale * small_expm1(r) + scale;
    }

    // exp(x). Below the range of normal numbers the result stays at the smallest of them, and above it is infinite.
    RAYFBNN_INLINE L exponential(L x) {
        Integer n;
        const L r = reduce_by_log2(at_most(at_least(x, F::lowest_exponent), F::highest_exponent), n);
        const L scale = power_of_two(n);
        return select(x > F::highest_exponent, splat(S(__builtin_huge_val())), scale * small_expm1(r) + scale);
    }

    // tanh(x). In float it is x P(x**2)/Q(x**2), minimax for the relative error (1e-8; with rounding 3e-7 at worst and
    // 6e-8 root mean square, so that 1 may become 1 + 2e-7). In double it is made of expm1 and is right to rounding.
    RAYFBNN_INLINE L tanh(L x) {
        if constexpr (!is_double) {
            x = at_least(at_most(x, 8.4f), -8.4f);
            const L z = x * x;
            L p = splat(2.578324753699235e-08f);
            p = p * z + 3.812745489994995e-05f;
            p = p * z + 0.006315924227237701f;
            p = p * z + 0.23931747674942017f;
            p = p * z + 1.7833458185195923f;
            L q = splat(1.4658991176474956e-06f);
            q = q * z + 0.0005994579987600446f;
            q = q * z + 0.046458709985017776f;
            q = q * z + 0.8337659239768982f;
            q = q * z + 1.7833458185195923f;
            return x * p / q;
        } else {
            const L y = at_most(absolute(x), 20.0) * 2;  // beyond 19.1 it rounds to 1
            Integer n;
            const L r = reduce_by_log2(y, n);
            const L scale = power_of_two(n);
            const L t = scale * small_expm1(r) + (scale - 1);  // expm1(2|x|)
            const L v = t / (t + 2);
            return select(x < 0, -v, v);
        }
    }

    RAYFBNN_INLINE L sigmoid(L x) { return tanh(x * S(0.5)) * S(0.5) + S(0.5); }

    // log(1 + e) for 0 <= e <= 1. It is 2 artanh(s) with s = e/(2 + e) <= 1/3, by its series (error 1e-9 in float,
    // 3e-18 in double).
    RAYFBNN_INLINE L log1p_of_fraction(L e) {
        const L s = e / (e + 2), z = s * s;
        constexpr int last = is_double ? 16 : 7;
        L p = splat(S(1) / (2 * last + 1));
#pragma GCC unroll 16
        for (int k = last - 1; k >= 0; --k) p = p * z + S(1) / (2 * k + 1);
        return 2 * s * p;
    }

    // The same, in float without a division: e times a polynomial, minimax for the relative error (3e-8; with rounding
    // 2e-7).
    RAYFBNN_INLINE L quick_log1p_of_fraction(L e) {
        if constexpr (is_double) {
            return log1p_of_fraction(e);
        } else {
            L p = splat(0.0052326936f);
            p = p * e - 0.029505236f;
            p = p * e + 0.07822595f;
            p = p * e - 0.13663246f;
            p = p * e + 0.19106007f;
            p = p * e - 0.24842982f;
            p = p * e + 0.33319098f;
            p = p * e - 0.49999493f;
            p = p * e + 0.99999994f;
            return p * e;
        }
    }

    RAYFBNN_INLINE L root(L x) {
        S places[Places<L>::width];
        __builtin_memcpy(places, &x, sizeof x);
        for (int k = 0; k < Places<L>::width; ++k)
            places[k] = is_double ? __builtin_sqrt(places[k]) : __builtin_sqrtf(places[k]);
        __builtin_memcpy(&x, places, sizeof x);
        return x;
    }

    // 1/x of a normal number. In float it is an estimate and a step of Newton's method, right to 3e-7, of fewer cycles
    // than a division.
    RAYFBNN_INLINE L reciprocal(L x) {
        if constexpr (is_double) {
            return 1 / x;
        } else {
            const L estimate = estimated_reciprocal(x);
            return estimate * (2 - x * estimate);
        }
    }

    // sqrt(x) of x >= 0, right to 4e-7 in float; numbers below 1e-37 count as 1e-37.
    RAYFBNN_INLINE L quick_root(L x) {
        if constexpr (is_double) {
            return root(x);
        } else {
            x = at_least(x, 1e-37f);
            const L estimate = estimated_reciprocal_root(x), found = x * estimate;
            return found * (1.5f - 0.5f * found * estimate);
        }
    }

    // log(x) of a normal number x. With x = 2**n m and m between sqrt(1/2) and sqrt(2), log(m) is 2 artanh((m - 1)/(m + 1)) by
    // its series (error 1e-18 in double, 3e-9 in float). Infinity and NaN have no such n and are returned as they
    // are.
    RAYFBNN_INLINE L log(L x) {
        const Integer bits = bits_of(x), n = (bits - bits_of(S(0.70710678118654752))) >> F::mantissa;
        const L m = value_of(bits - (n << F::mantissa)), count = value_of(n + bits_of(F::magic)) - F::magic;
        const L s = (m - 1) / (m + 1), z = s * s;
        constexpr int last = is_double ? 10 : 4;
        L p = splat(S(1.0 / (2 * last + 1)));
#pragma GCC unroll 16
        for (int k = last - 1; k >= 0; --k) p = p * z + S(1.0 / (2 * k + 1));
        // log(2) in two parts, of which the first has so few bits that its product is exact.
        constexpr S most = is_double ? S(6.93147180369123816490e-01) : S(0.693359375);
        constexpr S rest = is_double ? S(1.90821492927058770002e-10) : S(-2.12194440e-4);
        const L found = count * most + (2 * s * p + count * rest);
        return x < S(__builtin_inf()) ? found : x;
    }

    // 1/(1 + exp(-x)), right to relative rounding even where it is small.
    RAYFBNN_INLINE L logistic(L x) {
        const L e = exp_of_negative(-absolute(x));
        return select(x < 0, e, splat(1)) / (e + 1);
    }

    // sin(x), with cos(x) written to `cosine`, for |x| below 1e4 (float) or 1e6 (double). It uses x = q pi/2 + r with
    // |r| <= pi/4.
    RAYFBNN_INLINE L small_sine(L x, L& cosine) {
        Integer quadrant;
        const L q = round_to_integer(x * S(0.63661977236758134), quadrant);
        L r, sine, even;
        if constexpr (!is_double) {
            r = ((x - q * 1.5703125f) - q * 4.837512969970703125e-4f) - q * 7.54978995489188216e-8f;
            const L z = r * r;
            sine = splat(1 / 362880.0f);
            sine = sine * z - 1 / 5040.0f;
            sine = sine * z + 1 / 120.0f;
            sine = sine * z - 1 / 6.0f;
            sine = sine * z * r + r;
            even = splat(-1 / 3628800.0f);
            even = even * z + 1 / 40320.0f;
            even = even * z - 1 / 720.0f;
            even = even * z + 1 / 24.0f;
            even = even * z - 0.5f;
            even = even * z + 1;
        } else {
            r = ((x - q * 1.57079632673412561417e+00) - q * 6.07710050630396597660e-11) -
                q * 2.02226624879595063154e-21;
            const L z = r * r;
            sine = splat(1 / 355687428096000.0);
            sine = sine * z - 1 / 1307674368000.0;
            sine = sine * z + 1 / 6227020800.0;
            sine = sine * z - 1 / 39916800.0;
            sine = sine * z + 1 / 362880.0;
            sine = sine * z - 1 / 5040.0;
            sine = sine * z + 1 / 120.0;
            sine = sine * z - 1 / 6.0;
            sine = sine * z * r + r;
            even = splat(-1 / 6402373705728000.0);
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
        // Bit 1 of the quadrant is the sign of the sine; it is moved to where numbers have theirs.
        constexpr int sign = 8 * sizeof(S) - 2;
        cosine = value_of(bits_of(c) ^ ((quadrant + 1) & 2) << sign);
        return value_of(bits_of(s) ^ (quadrant & 2) << sign);
    }

    RAYFBNN_INLINE L sine_and_cosine(L x, L& cosine) {
        constexpr S limit = is_double ? S(1e6) : S(1e4);
        const L size = absolute(x);
        S sizes[Places<L>::width];
        __builtin_memcpy(sizes, &size, sizeof size);
        bool is_small = true;
        for (int k = 0; k < Places<L>::width; ++k) is_small &= !(sizes[k] > limit);
        return is_small ? small_sine(x, cosine) : large_sine<L>(x, cosine);
    }
};

// The sum of a pack's places, in double.
template <class L>
inline double sum_of_places(L x) {
    double sums[Places<L>::width];
    for (int k = 0; k < Places<L>::width; ++k) sums[k] = double(x[k]);
    for (int n = Places<L>::width / 2; n > 0; n /= 2)
        for (int k = 0; k < n; ++k) sums[k] += sums[k + n];
    return sums[0];
}

// The first n places of a pack, followed by zeros.
template <class L>
RAYFBNN_INLINE L first_places(L x, int n) {
    typename Places<L>::Integer numbers;
    for (int k = 0; k < Places<L>::width; ++k) numbers[k] = k;
    return Lane<L>::select(numbers < n, x, L{});
}

}  // namespace RAYFBNN_NAMESPACE
#endif
