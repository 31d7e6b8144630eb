// The formulas of predictive distributions of counts with dispersion, over the lanes of predictive.hpp.
//
// They are negative binomial with the mean exp(v) and the shape r, which all places of a lane share. This file includes
// nothing either.
#ifndef RAYFBNN_DISPERSED_HPP
#define RAYFBNN_DISPERSED_HPP

namespace RAYFBNN_NAMESPACE {

constexpr double FROM_FRACTION = 64;  // counts below this are summed one by one
constexpr double FROM_NORMAL = 200;   // counts from here on are nearly normal, if the shape is that large too
constexpr double FROM_STIRLING = 8;   // shapes below this are raised by 8
constexpr int N_OF_SHAPE = 4;         // numbers of a shape

template <class D>
struct Dispersed {
    typedef typename D::Value V;
    typedef Predictive<D> P;
    typedef typename P::Count Count;

    // The shape of all places: r, its logarithm, sqrt(r) exp(-s(r)) with the remainder s of Stirling's formula, and the
    // number of terms of the continued fraction; shape_constants of mixtures/negative_binomial.py.
    struct Shape {
        double r, log, scale;
        int terms;
    };
    RAYFBNN_FORMULA Shape shape_at(const double* numbers) {
        return {numbers[0], numbers[1], numbers[2], int(numbers[3])};
    }

    // x = v - log(r), log(1 + exp(-|x|)), and the shares p = r/(r + exp(v)) and q = exp(v)/(r + exp(v)).
    struct Odds {
        V x, excess, p, q;
    };
    RAYFBNN_FORMULA Odds odds(V v, const Shape& shape) {
        const V x = v - shape.log, e = D::exp_of_negative(-D::absolute(x)), larger = 1 / (e + 1), smaller = e * larger;
        return {x, D::log1p_of_fraction(e), D::select(x > 0, smaller, larger), D::select(x > 0, larger, smaller)};
    }

    // P(Y <= k) and P(Y = k) for k up to `last`, which is below 64: P(j) = P(j - 1) (r + j - 1)/j q.
    RAYFBNN_FORMULA void small_count(const Odds& odds, V k, const Shape& shape, int last, V& cdf, V& mass) {
        V p = P::decay((D::at_least(odds.x, 0) + odds.excess) * shape.r);
        const V times_shape = odds.q * shape.r;
        cdf = p, mass = p;
        for (int j = 1; j <= last; ++j) {
            p *= (times_shape + odds.q * double(j - 1)) * (1.0 / j);
            cdf += D::select(k < j, D::splat(0), p);
            mass = D::select(k < j, mass, p);
        }
    }

    // A count k from 64 on: 1/(r + k), and half the squared deviance, of which exp(-exponent) is a factor of P(Y = k).
    // distance is log(k) - v.
    struct Large {
        V inverse, exponent, e, mass, distance;
    };

    // P(Y = k) as in log_mass of mixtures/negative_binomial.py. The logarithms a and b are differences of log(1 + k/r)
    // and log(1 + exp(v)/r), and of log(1 + r/k) and log(1 + r/exp(v)). Neither loses digits in this form.
    RAYFBNN_FORMULA Large at_large(const Odds& odds, const Count& count, const Shape& shape) {
        const V x = count.log - shape.log;
        const V difference = D::log1p_of_fraction(D::exp_of_negative(-D::absolute(x))) - odds.excess;
        const V a = D::at_least(-x, 0) - D::at_least(-odds.x, 0) + difference;
        const V b = D::at_least(x, 0) - D::at_least(odds.x, 0) + difference;
        const V deviance = P::exponential_excess(a) * count.k + P::exponential_excess(b) * shape.r;
        const V exponent = D::at_most(deviance, 1e4), e = P::decay(exponent), inverse = 1 / (count.k + shape.r);
        const V s = inverse * (1. / 12 - inverse * inverse * (1. / 360));
        const V of_remainder = s * (s * (s * (1. / 6) + 0.5) + 1) + 1;  // exp(s), as s is below 1/768
        const V mass = e * count.peak * D::root(inverse) * of_remainder * shape.scale;
        return {inverse, exponent, e, mass, x - odds.x};
    }

    // P(Y <= k) = I(p; r, k + 1) by the continued fraction of Didonato and Morris (1992), "Algorithm 708", eq. 9, for the
    // tail on the far side of the mean. It takes about sqrt(min(r, k)) terms. With a shape below 8 it would take more;
    // then I(p; r, k + 1) is I(p; r + 8, k + 1) and the eight terms that the NIST Handbook, eq. 8.17.20, has between them.
    RAYFBNN_FORMULA V by_fraction(const Odds& odds, V k, const Shape& shape, V mass) {
        const V p = odds.p, q = odds.q, after = k + (shape.r + 1);
        V factor = mass * q * (k + shape.r), added = D::splat(0);
        double r = shape.r;
        if (r < FROM_STIRLING) {
            V term = factor / r;
            for (int j = 0; j < 8; ++j) {
                added += term;
                term *= p * (after + double(j)) * (1 / (r + (j + 1)));
            }
            r += 8;
            factor = term * r;
        }
        const V distance = q * r - (k + 1) * p;
        const auto is_lower = distance > 0;
        const V a = D::select(is_lower, D::splat(r), k + 1), b = D::select(is_lower, k + 1, D::splat(r));
        const V x = D::select(is_lower, p, q), start = D::absolute(distance) + 1, both = k + (r + 1);
        V u = 1 / (a + double(2 * shape.terms + 1)), next = u, f = D::splat(1), alpha = D::splat(0);
        for (int j = shape.terms; j > 0; --j) {
            const double n = j;
            next = u;
            u = 1 / (a + (2 * n - 1));
            const V shrunk = (b - n) * x * n;
            f = shrunk * u + (a + n) * next * (start + (2 - x) * n) + n + alpha / f;
            alpha = (a + (n - 1)) * u * ((both + (n - 1)) * x * u) * shrunk;
        }
        f = a * u * start + alpha / f;
        const V tail = factor / f;
        return D::select(is_lower, tail, 1 - tail) + added;
    }

    // P(Y <= k) for r and k from 200 on, by the uniform expansion of I(p; r, k) for large r and k, the NIST Handbook, eq.
    // 8.18.14: with N = r + k, z**2/2 the exponent and theta = (k - r)/sqrt(r k), the terms up to N**(-3) and eta**5 as
    // polynomials in t = theta/sqrt(N) and 1/N. They were derived by comparing derivatives, as in Temme (1982), "The
    // uniform asymptotic expansion of a class of integrals related to cumulative distribution functions", section 3.
    RAYFBNN_FORMULA V nearly_normal(const Large& at, V k, const Shape& shape) {
        const V w = at.inverse, size = D::root(2 * at.exponent), z = D::select(at.distance > 0, size, -size);
        const V t = (k - shape.r) * w / D::root(k * w * shape.r), t2 = t * t, w2 = w * w;
        const V y = t2 + 3 * w, g = t * (2 * t2 + 9 * w);
        V sum = t2 * t2 * t2 * 139 + t2 * t2 * w * 1251 + t2 * w2 * 3321 + w2 * w * 2025;
        sum = sum * (1. / 777600) * z - y * g * (1. / 5670);
        sum = sum * z - y * y * (1. / 864);
        sum = sum * z + g * (1. / 135) - y * g * (1. / 756);
        sum = sum * z - y * (1. / 12) + y * y * (1. / 288);
        sum = sum * z + t * (1. / 3) + t * (t2 + 27 * w) * (1. / 540) - t * y * (25 * t2 + 123 * w) * (1. / 6048);
        const V tail = at.e * P::scaled_normal_tail(size);
        return D::select(at.distance > 0, 1 - tail, tail) + at.e * sum * 0.39894228040143268 + at.mass;
    }

    // P(Y <= k) and P(Y = k) for k from 64 on. `has_few` and `has_many` say whether there are k below and from 200 on.
    RAYFBNN_FORMULA void large_count(
        const Odds& odds, const Count& count, const Shape& shape, bool has_few, bool has_many, V& cdf, V& mass) {
        const Large at = at_large(odds, count, shape);
        const bool is_small = shape.r < FROM_NORMAL;
        mass = at.mass;
        if (is_small || has_few) cdf = by_fraction(odds, count.k, shape, mass);
        if (is_small || !has_many) return;
        const V nearly = nearly_normal(at, count.k, shape);
        cdf = has_few ? D::select(count.k < FROM_NORMAL, cdf, nearly) : nearly;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
