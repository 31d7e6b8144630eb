// The regression by matrices of the features, A = Phi T Phi' + S; model/regression.py has its formulas.
#ifndef RAYFBNN_REGRESSION_PRIMAL_HPP
#define RAYFBNN_REGRESSION_PRIMAL_HPP

#include "cholesky.hpp"
#include "regression.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
struct PrimalRegression : RegressionWorker<S> {
    typedef RegressionWorker<S> Base;
    typedef typename Base::L L;
    using Base::W, Base::WD;
    using Base::given, Base::n_features, Base::stride, Base::stride_double, Base::rows, Base::doubles;
    using Base::noise, Base::prior, Base::targets, Base::n_targets;
#if defined(__AVX512F__) || defined(__aarch64__)
    static constexpr int COLUMNS = 4;  // of a register tile of products, four rows high
    static constexpr int SLOPES = 4;   // features in a register tile of slopes
#else
    static constexpr int COLUMNS = 3;
    static constexpr int SLOPES = 2;
#endif

    // Behind the features, `rows` holds the residuals of every target, and `doubles` the targets.
    const int n_rows;    // rows of `gram`: the features, then the targets that are worked on together
    Buffer<PackDouble> scaled;  // (n_features, stride_double): features times T, if T differs between cases
    Buffer<double> gram;        // (n_rows, n_features), the lower triangle
    Cholesky matrix;            // A of a system
    Buffer<double> means;       // (n_systems, n_each, n_features)
    Buffer<S> weights;          // the factors of features and residuals in the slopes, see `combine`
    Buffer<S> negative;         // (n_features,): -m of a target
    Buffer<L> case_noise;       // (n_systems, stride): T, if it differs between cases
    Buffer<double> prior_slopes;  // (n_features,): derivatives by the logs of S, summed over systems

    PrimalRegression(const rayfbnn::Regression& given, long n_packs)
        : Base(given, n_packs, given.n_features + given.n_systems * given.n_each, 0.5 * given.n_each),
          n_rows(given.n_features + (given.is_uniform ? given.n_systems : 1) * given.n_each),
          scaled(n_features * stride_double),
          gram(long(n_rows) * n_features),
          matrix(given.n_features),
          means(long(n_targets()) * n_features),
          weights(n_weights()),
          negative(n_features),
          case_noise(given.is_uniform ? 0 : given.n_systems * stride),
          prior_slopes(n_features) {}

    // Places behind the last case stay zero.
    void set_targets() override {
        for (int j = 0; j < n_targets(); ++j) {
            double* row = reinterpret_cast<double*>(doubles + (n_features + j) * stride_double);
            memset(static_cast<void*>(row), 0, stride_double * sizeof(PackDouble));
            memcpy(row, targets(j), given.n_cases * sizeof(double));
        }
        if (given.is_uniform) return;
        memset(static_cast<void*>(case_noise), 0, given.n_systems * stride * sizeof(L));
        for (int s = 0; s < given.n_systems; ++s) {
            S* row = reinterpret_cast<S*>(case_noise + s * stride);
            for (int c = 0; c < given.n_cases; ++c) row[c] = S(noise(s)[c]);
        }
    }

    void begin_slopes() override {
        memset(static_cast<void*>(weights), 0, n_weights() * sizeof(S));
        memset(static_cast<void*>(prior_slopes), 0, n_features * sizeof(double));
    }

    double solve_system(int system, bool wants_energy, bool wants_slopes) override {
        products(system);
        const double log_determinant = factorise(system, wants_energy);
        solve(system);
        const double energy = wants_energy ? 0.5 * (given.n_each * log_determinant + squares(system)) : 0;
        if (wants_slopes) residuals(system), combine(system);
        return energy;
    }

    double prior_slope(int feature) const override { return prior_slopes[feature]; }

    // --- products ---

    // gram[i][j] for n rows from `into` on, and for the columns j <= i that are features. The cases are taken block by
    // block, such that all rows of a block stay in cache.
    void triangle(const PackDouble* from, int into, int n, const PackDouble* columns) {
        memset(gram + long(into) * n_features, 0, long(n) * n_features * sizeof(double));
        const long most = BLOCK_BYTES / (n_rows * long(sizeof(PackDouble))), least = 16;
        const long n_blocks = (stride_double - 1) / (most < least ? least : most) + 1;
        for (long b = 0; b < n_blocks; ++b) {
            const long begin = stride_double * b / n_blocks, end = stride_double * (b + 1) / n_blocks;
            block(from + begin, into, n, columns + begin, int(end - begin));
        }
    }
    void block(const PackDouble* from, int into, int n, const PackDouble* columns, int n_packs) {
        int i = 0;
        for (; i + 4 <= n; i += 4) row_block<4>(from + i * stride_double, into + i, columns, n_packs);
        if (n - i == 3) row_block<3>(from + i * stride_double, into + i, columns, n_packs);
        if (n - i == 2) row_block<2>(from + i * stride_double, into + i, columns, n_packs);
        if (n - i == 1) row_block<1>(from + i * stride_double, into + i, columns, n_packs);
    }
    template <int ROWS>
    void row_block(const PackDouble* from, int i, const PackDouble* columns, int n_packs) {
        const int end = i + ROWS < n_features ? i + ROWS : n_features;
        int j = 0;
        for (; j + COLUMNS <= end; j += COLUMNS) tile<ROWS, COLUMNS>(from, i, j, columns, n_packs);
        if (end - j == 3) tile<ROWS, 3>(from, i, j, columns, n_packs);
        if (end - j == 2) tile<ROWS, 2>(from, i, j, columns, n_packs);
        if (end - j == 1) tile<ROWS, 1>(from, i, j, columns, n_packs);
    }
    template <int ROWS, int UNITS>
    void tile(const PackDouble* from, int i, int j, const PackDouble* columns, int n_packs) {
        constexpr int n = ROWS * UNITS, n_padded = (n + WD - 1) / WD * WD;
        PackDouble sums[n_padded] = {};  // not yet summed over places
        add_products_to<ROWS, UNITS>(sums, UNITS, n_packs, from, columns + j * stride_double, stride_double);
        double totals[n_padded];
        for (int k = 0; k < n_padded; k += WD) {
            const PackDouble total = sums_of<WD>(sums + k);
            memcpy(totals + k, &total, sizeof total);
        }
        for (int r = 0; r < ROWS; ++r)
            for (int u = 0; u < UNITS; ++u) gram[long(i + r) * n_features + j + u] += totals[r * UNITS + u];
    }

    // Phi T Phi' and, in the rows behind it, (Phi T y)' of the targets. If T is the same for all cases, it is left out
    // and one call serves all systems. Otherwise these are the products of one system.
    void products(int system) {
        if (given.is_uniform && system > 0) return;
        const PackDouble* columns = doubles;
        if (!given.is_uniform) {
            const double* t = noise(system);
            for (int k = 0; k < n_features; ++k) {
                const double* from = reinterpret_cast<const double*>(doubles + k * stride_double);
                double* to = reinterpret_cast<double*>(scaled + k * stride_double);
                for (int c = 0; c < given.n_cases; ++c) to[c] = t[c] * from[c];
                for (long c = given.n_cases; c < stride * W; ++c) to[c] = 0;
            }
            columns = scaled;
        }
        if (system == 0) {  // the targets' rows follow the features'
            triangle(doubles, 0, n_rows, columns);
        } else {
            triangle(doubles, 0, n_features, columns);
            triangle(
                doubles + (n_features + long(system) * given.n_each) * stride_double, n_features, given.n_each,
                columns);
        }
    }
    // (Phi T y)' of a target, without T if T is the same for all cases.
    const double* right_side(int system, int each) const {
        return gram + long(n_features + (given.is_uniform ? system * given.n_each : 0) + each) * n_features;
    }

    // --- solutions ---

    double factorise(int system, bool wants_energy) {
        const double t = given.is_uniform ? noise(system)[0] : 1;
        const double* s = prior(system);
        for (int i = 0; i < n_features; ++i) {
            double* row = matrix.factor + long(i) * matrix.padded;
            for (int j = 0; j < matrix.padded; ++j) row[j] = 0;
            for (int j = i; j < n_features; ++j) row[j] = t * gram[long(j) * n_features + i];
            row[i] += s[i];
        }
        return matrix.factorise(wants_energy);
    }

    // m of a system's targets.
    void solve(int system) {
        const double t = given.is_uniform ? noise(system)[0] : 1;
        for (int e = 0; e < given.n_each; ++e)
            matrix.solve(right_side(system, e), t, means + long(system * given.n_each + e) * n_features);
    }

    // r'Tr + m'Sm of a system's targets.
    double squares(int system) const {
        const double* t = noise(system);
        const double* s = prior(system);
        double total = 0;
        for (int e = 0; e < given.n_each; ++e) {
            const int target = system * given.n_each + e;
            const double* m = means + long(target) * n_features;
            const double* y = targets(target);
            for (int c = 0; c < given.n_cases; ++c) {
                double r = y[c];
                for (int k = 0; k < n_features; ++k)
                    r -= m[k] * reinterpret_cast<const double*>(doubles + k * stride_double)[c];
                total += (given.is_uniform ? t[0] : t[c]) * r * r;
            }
            for (int k = 0; k < n_features; ++k) total += s[k] * m[k] * m[k];
        }
        return total;
    }

    // Residuals of a system's targets, behind the features.
    void residuals(int system) {
        for (int e = 0; e < given.n_each; ++e) {
            const int target = system * given.n_each + e;
            const double* m = means + long(target) * n_features;
            for (int k = 0; k < n_features; ++k) negative[k] = S(-m[k]);
            L* row = rows + (n_features + target) * stride;
            const double* y = reinterpret_cast<const double*>(doubles + (n_features + target) * stride_double);
            S* places = reinterpret_cast<S*>(row);
            for (long c = 0; c < stride * W; ++c) places[c] = S(y[c]);
            long p = 0;
            for (; p + 5 <= stride; p += 5) add_combination<1, 5>(row + p, negative, 1, n_features, rows + p);
            for (; p < stride; ++p) add_combination<1, 1>(row + p, negative, 1, n_features, rows + p);
        }
    }

    // to[m][p] += sum over k < n of factors[k * row_step + m] * from[k][p]
    template <int UNITS, int CASES>
    void add_combination(L* to, const S* factors, long row_step, int n, const L* from) const {
        L tile[UNITS][CASES];
        for (int m = 0; m < UNITS; ++m)
            for (int p = 0; p < CASES; ++p) tile[m][p] = to[m * stride + p];
        multiply_add(tile, n, WeightRows<L>{factors, row_step, 1}, ValueRows<L>{from, stride});
        for (int m = 0; m < UNITS; ++m)
            for (int p = 0; p < CASES; ++p) to[m * stride + p] = tile[m][p];
    }

    // Sets the factors weights[k][f] of a system: the slope of feature f is their sum with rows k, features and
    // residuals.
    //
    // If T is the same for all cases, the factors include T; those of features are added up over systems, and those of
    // residuals follow target by target. Otherwise each system has a block of its own, and `slopes` multiplies by T.
    void combine(int system) {
        matrix.invert();
        const double* inverse = matrix.inverse;
        const int padded = matrix.padded;
        const double t = given.is_uniform ? noise(system)[0] : 1;
        S* block = given.is_uniform ? weights : weights + long(system) * (n_features + given.n_each) * n_features;
        S* by_residual = block + long(n_features) * n_features;
        if (given.is_uniform) by_residual += long(system) * given.n_each * n_features;
        const double factor = t * given.n_each;
        for (int k = 0; k < n_features; ++k)
            for (int f = 0; f < n_features; ++f)
                block[long(k) * n_features + f] += S(factor * inverse[long(k) * padded + f]);
        for (int e = 0; e < given.n_each; ++e)
            for (int f = 0; f < n_features; ++f)
                by_residual[long(e) * n_features + f] =
                    S(-t * means[long(system * given.n_each + e) * n_features + f]);
        const double* s = prior(system);
        for (int f = 0; f < n_features; ++f) {  // ( S (diag(A^-1) + m**2) - 1 ) / 2, summed over targets
            double second_moments = given.n_each * inverse[long(f) * padded + f];
            for (int e = 0; e < given.n_each; ++e) {
                const double m = means[long(system * given.n_each + e) * n_features + f];
                second_moments += m * m;
            }
            prior_slopes[f] += 0.5 * (s[f] * second_moments - given.n_each);
        }
    }

    // Goes through a few packs of all features at a time, which stay in cache.
    void slopes(int first, int n, L* to) const override {
        long p = 0;
        for (; p + 5 <= stride; p += 5) slope_column<5>(first, n, p, to + p);
        for (; p + 2 <= stride; p += 2) slope_column<2>(first, n, p, to + p);
        for (; p < stride; ++p) slope_column<1>(first, n, p, to + p);
    }
    template <int CASES>
    void slope_column(int first, int n, long p, L* to) const {
        int k = 0;
        for (; k + SLOPES <= n; k += SLOPES) slope_tile<SLOPES, CASES>(first + k, p, to + k * stride);
        for (; k + 2 <= n; k += 2) slope_tile<2, CASES>(first + k, p, to + k * stride);
        if (k < n) slope_tile<1, CASES>(first + k, p, to + k * stride);
    }
    template <int UNITS, int CASES>
    void slope_tile(int feature, long p, L* to) const {
        L tile[UNITS][CASES] = {};
        if (given.is_uniform) {
            const WeightRows<L> factors = {weights + feature, n_features, 1};
            multiply_add(tile, n_features + n_targets(), factors, ValueRows<L>{rows + p, stride});
        } else {
            for (int s = 0; s < given.n_systems; ++s) {
                const S* block = weights + long(s) * (n_features + given.n_each) * n_features + feature;
                const L* residuals = rows + (n_features + long(s) * given.n_each) * stride + p;
                L part[UNITS][CASES] = {};
                const S* behind = block + long(n_features) * n_features;
                multiply_add(part, n_features, WeightRows<L>{block, n_features, 1}, ValueRows<L>{rows + p, stride});
                multiply_add(part, given.n_each, WeightRows<L>{behind, n_features, 1}, ValueRows<L>{residuals, stride});
                for (int m = 0; m < UNITS; ++m)
                    for (int c = 0; c < CASES; ++c) tile[m][c] += part[m][c] * case_noise[s * stride + p + c];
            }
        }
        for (int m = 0; m < UNITS; ++m)
            for (int c = 0; c < CASES; ++c) to[m * stride + c] = tile[m][c];
    }

    long n_weights() const {
        return given.is_uniform ? long(n_features + n_targets()) * n_features
                                : long(given.n_systems) * (n_features + given.n_each) * n_features;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
