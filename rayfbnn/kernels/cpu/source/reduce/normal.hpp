// Normal distributions at packs of standardised values.
#ifndef RAYFBNN_NORMAL_HPP
#define RAYFBNN_NORMAL_HPP

#include "elementary.hpp"
#include "shared/predictive.hpp"

namespace RAYFBNN_NAMESPACE {

// The distribution function and the density of a standard normal. In float by Abramowitz and Stegun (1964), 26.2.17,
// whose error is below 7.5e-8. Values beyond 13 (in double 37) count as these, so that nothing underflows.
RAYFBNN_INLINE void normal(PackDouble& z, PackDouble& cdf, PackDouble& density) {
    typedef Lane<PackDouble> D;
    z = D::at_most(D::at_least(z, -37), 37);
    const PackDouble e = D::exp_of_negative(-0.5 * z * z), tail = e * Predictive<D>::scaled_normal_tail(D::absolute(z));
    density = e * 0.39894228040143268;
    cdf = D::select(z > 0, 1 - tail, tail);
}

RAYFBNN_INLINE void normal(PackFloat& z, PackFloat& cdf, PackFloat& density) {
    typedef Lane<PackFloat> F;
    z = F::at_most(F::at_least(z, -13), 13);
    // exp(-z**2 / 2) / sqrt(2 pi) is 2**(n + r). The nearest whole number n is in the low bits of `shifted`, and 2**r
    // is its Taylor series with the last coefficients changed for |r| <= 1/2 (relative error 2e-8).
    const PackFloat y = z * z * -0.72134752044448170f;
    const PackFloat shifted = y + Format<float>::magic, r = y - (shifted - Format<float>::magic);
    PackFloat p = splat<PackFloat>(0.000534599897f);
    p = p * r + 0.00386018031f;
    p = p * r + 0.022142602f;
    p = p * r + 0.0958343429f;
    p = p * r + 0.276525727f;
    p = p * r + 0.398942311f;
    density = value_of(bits_of(p) + (bits_of(shifted) << 23));
    const PackFloat t = F::reciprocal(0.2316419f * F::absolute(z) + 1);
    PackFloat tail = splat<PackFloat>(1.330274429f);
    tail = tail * t - 1.821255978f;
    tail = tail * t + 1.781477937f;
    tail = tail * t - 0.356563782f;
    tail = tail * t + 0.319381530f;
    tail *= t * density;
    cdf = F::select(z > 0, 1 - tail, tail);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
