// The regression by matrices of the cases, B = I + T^1/2 Phi' S^-1 Phi T^1/2; model/regression.py has its
// formulas.
//
// Slopes are in double and are rounded to the type of the position only at the end, because large terms cancel in S^-1
// Phi V. In float, a tenth of the gradients of 1-100-1 at 20 cases were wrong by more than 1e-5 of their largest
// component, the worst by 1e-4.
#ifndef RAYFBNN_REGRESSION_DUAL_HPP
#define RAYFBNN_REGRESSION_DUAL_HPP

#include "cholesky.hpp"
#include "regression.hpp"

namespace RAYFBNN_NAMESPACE {

// Rows of packs that are linear combinations of other rows: to[m][p] is the sum over k < n of
// factors[k * row_step + m * unit_step] * from[k][p], for m < n_units and p < n_packs.
struct Combination {
#if defined(__AVX512F__) || defined(__aarch64__)
    static constexpr int MOST = 5;  // packs in a register tile
    static constexpr int units(int n_packs) { return n_packs <= 2 ? 8 : 4; }
#else
    static constexpr int MOST = 3;
    static constexpr int units(int n_packs) { return n_packs == 1 ? 8 : 4; }
#endif

    const double* factors;
    long row_step, unit_step;
    int n;
    const PackDouble* from;
    long stride;
    PackDouble* to;
    long to_stride;

    template <int UNITS, int PACKS>
    void tile(long m, long p) const {
        PackDouble sums[UNITS][PACKS] = {};
        const WeightRows<PackDouble> weights = {factors + m * unit_step, row_step, unit_step};
        multiply_add(sums, n, weights, ValueRows<PackDouble>{from + p, stride});
        for (int u = 0; u < UNITS; ++u)
            for (int k = 0; k < PACKS; ++k) to[(m + u) * to_stride + p + k] = sums[u][k];
    }
    template <int PACKS>
    void column(long n_units, long p) const {
        constexpr int UNITS = units(PACKS);
        long m = 0;
        for (; m + UNITS <= n_units; m += UNITS) tile<UNITS, PACKS>(m, p);
        if (UNITS > 4 && m + 4 <= n_units) tile<4, PACKS>(m, p), m += 4;
        if (m + 2 <= n_units) tile<2, PACKS>(m, p), m += 2;
        if (m < n_units) tile<1, PACKS>(m, p);
    }
    void all(long n_units, long n_packs) const {
        long p = 0;
        for (; p + MOST <= n_packs; p += MOST) column<MOST>(n_units, p);
        switch (n_packs - p) {
            case 4: column<MOST < 4 ? MOST : 4>(n_units, p); break;
            case 3: column<3>(n_units, p); break;
            case 2: column<2>(n_units, p); break;
            case 1: column<1>(n_units, p); break;
            default: break;
        }
    }
};

template <class S>
struct DualRegression : RegressionWorker<S> {
    typedef RegressionWorker<S> Base;
    typedef typename Base::L L;
    typedef typename Base::Half Half;
    using Base::WD;
    using Base::given, Base::n_features, Base::stride, Base::stride_double, Base::doubles;
    using Base::noise, Base::prior, Base::targets, Base::n_targets;
    static constexpr int BLOCK = 8;  // rows of B that are computed from the same pack on

    Cholesky matrix;      // B of a system
    const long n_packs;   // packs of doubles that hold all cases; stride_double may be larger
    Buffer<PackDouble> scaled;   // (n_features, n_packs): S^-1/2 Phi T^1/2 of a system
    Buffer<PackDouble> roots;    // (n_systems, n_packs): T^1/2, zero behind the last case
    Buffer<double> right;        // (n_targets, n_cases): T^1/2 y
    Buffer<double> solved;       // (n_each, padded): B^-1 T^1/2 y of a system
    Buffer<PackDouble> between;  // (n_cases, n_packs): V of a system, see `set_between`
    Buffer<PackDouble> part, total;  // (n_features, n_packs): slopes of a system times S, slopes of all systems

    DualRegression(const rayfbnn::Regression& given, long n_packs_of_type)
        : Base(given, n_packs_of_type, given.n_features, 0),
          matrix(given.n_cases),
          n_packs(matrix.padded / WD),
          scaled(n_features * n_packs),
          roots(given.n_systems * n_packs),
          right(long(n_targets()) * given.n_cases),
          solved(long(given.n_each) * matrix.padded),
          between(given.n_cases * n_packs),
          part(n_features * n_packs),
          total(n_features * n_packs) {
        memset(static_cast<void*>(solved), 0, long(given.n_each) * matrix.padded * sizeof(double));
    }

    void set_targets() override {
        memset(static_cast<void*>(roots), 0, given.n_systems * n_packs * sizeof(PackDouble));
        for (int s = 0; s < given.n_systems; ++s) {
            double* root = reinterpret_cast<double*>(roots + s * n_packs);
            for (int c = 0; c < given.n_cases; ++c) root[c] = __builtin_sqrt(noise(s)[given.is_uniform ? 0 : c]);
            for (int j = s * given.n_each; j < (s + 1) * given.n_each; ++j)
                for (int c = 0; c < given.n_cases; ++c) right[long(j) * given.n_cases + c] = root[c] * targets(j)[c];
        }
    }

    double solve_system(int system, bool wants_energy, bool wants_slopes) override {
        set_matrix(system);
        const double log_determinant = matrix.factorise(wants_energy);
        double squares = 0;  // y' T^1/2 B^-1 T^1/2 y
        for (int e = 0; e < given.n_each; ++e) {
            const double* b = right + (long(system) * given.n_each + e) * given.n_cases;
            double* u = solved + long(e) * matrix.padded;
            matrix.solve(b, 1, u);
            for (int c = 0; wants_energy && c < given.n_cases; ++c) squares += b[c] * u[c];
        }
        if (wants_slopes) set_between(system), add_slopes(system);
        return wants_energy ? 0.5 * (given.n_each * log_determinant + squares) : 0;
    }

    void set_matrix(int system) {
        const PackDouble* root = roots + system * n_packs;
        for (int k = 0; k < n_features; ++k) {
            const PackDouble factor = splat<PackDouble>(1 / __builtin_sqrt(prior(system)[k]));
            for (long p = 0; p < n_packs; ++p)
                scaled[k * n_packs + p] = doubles[k * stride_double + p] * (root[p] * factor);
        }
        PackDouble* rows_of_matrix = reinterpret_cast<PackDouble*>(matrix.factor.data());
        for (int i = 0; i < given.n_cases; i += BLOCK) {  // the upper triangle, by whole packs
            const Combination products = {
                reinterpret_cast<const double*>(scaled.data()) + i, n_packs * WD, 1, n_features,
                scaled + i / WD, n_packs, rows_of_matrix + i * n_packs + i / WD, n_packs};
            products.all(given.n_cases - i < BLOCK ? given.n_cases - i : BLOCK, n_packs - i / WD);
        }
        for (int c = 0; c < given.n_cases; ++c) matrix.factor[long(c) * matrix.padded + c] += 1;
    }

    // V = T^1/2 (n_each B^-1 - sum over targets u u') T^1/2 with u = B^-1 T^1/2 y, so that S^-1 Phi V are the slopes.
    void set_between(int system) {
        matrix.invert();
        const PackDouble* root = roots + system * n_packs;
        for (int c = 0; c < given.n_cases; ++c) {
            const PackDouble own = splat<PackDouble>(reinterpret_cast<const double*>(root)[c]);
            const PackDouble* inverse = reinterpret_cast<const PackDouble*>(matrix.inverse.data()) + c * n_packs;
            PackDouble* to = between + c * n_packs;
            for (long p = 0; p < n_packs; ++p) {
                PackDouble value = splat<PackDouble>(given.n_each) * inverse[p];
                for (int e = 0; e < given.n_each; ++e) {
                    const double* u = solved + long(e) * matrix.padded;
                    value -= splat<PackDouble>(u[c]) * reinterpret_cast<const PackDouble*>(u)[p];
                }
                to[p] = value * (own * root[p]);
            }
        }
    }

    void add_slopes(int system) {
        const Combination products = {
            reinterpret_cast<const double*>(doubles.data()), 1, stride_double * WD, given.n_cases,
            between, n_packs, part, n_packs};
        products.all(n_features, n_packs);
        for (int k = 0; k < n_features; ++k) {
            const PackDouble factor = splat<PackDouble>(1 / prior(system)[k]);
            const PackDouble* from = part + k * n_packs;
            PackDouble* to = total + k * n_packs;
            for (long p = 0; p < n_packs; ++p) to[p] = system == 0 ? factor * from[p] : to[p] + factor * from[p];
        }
    }

    double prior_slope(int feature) const override {
        const PackDouble *slope = total + feature * n_packs, *value = doubles + feature * stride_double;
        PackDouble sum = splat<PackDouble>(0);
        for (long p = 0; p < n_packs; ++p) sum += slope[p] * value[p];
        double result = 0;
        for (int k = 0; k < WD; ++k) result -= 0.5 * sum[k];
        return result;
    }

    void slopes(int first, int n, L* to) const override {
        for (int k = 0; k < n; ++k) {
            Half* places = reinterpret_cast<Half*>(to + k * stride);
            const PackDouble* from = total + (first + k) * n_packs;
            for (long p = 0; p < n_packs; ++p) places[p] = __builtin_convertvector(from[p], Half);
            for (long p = n_packs; p < stride_double; ++p) places[p] = Half{};
        }
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
