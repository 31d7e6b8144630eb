// One network with its cases: what Python passes is checked, the cases are cut into blocks, and the functions of one
// instruction set are called.
#ifndef RAYFBNN_KERNEL_HPP
#define RAYFBNN_KERNEL_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define RAYFBNN_NAMESPACE rayfbnn
#include "arguments.hpp"
#include "memory.hpp"
#include "rates.hpp"
#include "trajectory.hpp"

namespace rayfbnn {
namespace {

std::vector<const Kernels*> instruction_sets() {
    std::vector<const Kernels*> sets;
#if defined(RAYFBNN_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        sets.push_back(&kernels_avx512());
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&kernels_avx2());
#endif
    sets.push_back(&kernels_plain());
    return sets;
}

typedef std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> PlaceNumbers;

// A place in the run's streams from what `Streams.place` returns.
StreamPlace place_of(
    const PlaceNumbers& place, const Input& chains, size_t n) {
    const auto [seed, use, operation, iteration] = place;
    const void* numbers = data_of(chains, "chains", nb::dtype<uint64_t>(), {n});
    return {seed, use, operation, iteration, static_cast<const unsigned long long*>(numbers)};
}

// True if a data model (the codes of arithmetic.hpp) has so many targets, and rows of numbers that say them.
bool fits(int model, int n_outputs, int n_targets, int n_rows) {
    switch (model) {
        case 3: return n_rows == n_outputs;
        case 4:
        case 5:
        case 7: return n_outputs == n_targets && n_rows == 2 * n_targets;
        case 6: return n_outputs == 2 * n_targets && n_rows == n_targets;
        default: return n_outputs == n_targets && n_rows == n_targets;
    }
}

// One network, with the inputs of its cases: laid out in packs, or if they are many, in the caller's array.
class Kernel {
   public:
    // links        (source, destination, start, n_units, has_biases) of each link
    // segments     (start, stop, alpha) of consecutive parameters with one kind of prior
    // inputs       (n_inputs + 1, n_cases), a row of ones last, in the type that positions will have
    // batch        0, or the most cases in a batch
    // gemm         the capsule of SciPy's sgemm or dgemm, or None
    // large_from   number of weights from which on a link is large
    // blas_from    number of weights from which on BLAS computes a link's products
    // block_bytes  memory for the values and derivatives of one block of cases, or 0 for the usual amount
    // rows_from    bytes of inputs from which on they stay in the caller's array, which the kernel then keeps alive
    // integrated   (start, stop, shape, rate) of parameters whose common precision is integrated out
    // features     (layer, row) of each feature. With features, the targets are regressed on them, and the last layer
    //              has no units and no links. n_systems, n_each, is_dual and moved belong to this regression.
    // moved        (first, stop, half, mean) of features whose prior precision has a coordinate of the position
    // starts       the times when the pieces of a hazard start, for reductions; the cases are then cells in the order of
    //              Reduction. One number for other data models.
    Kernel(
        const std::string& instruction_set, std::vector<int> units, std::vector<int> activations,
        std::vector<int> offsets, const std::vector<std::tuple<int, int, int, int, bool>>& links,
        const std::vector<std::tuple<int, int, double>>& segments, int model, double alpha, int n_targets,
        int n_rows, int n_parameters, const Input& inputs, int batch, int n_partitions, nb::object gemm,
        long large_from, long blas_from, long block_bytes, long rows_from,
        const std::vector<std::tuple<int, int, double, double>>& integrated,
        const std::vector<std::tuple<int, int>>& features, int n_systems, int n_each, bool is_dual,
        const std::vector<std::tuple<int, int, double, double>>& moved, std::vector<double> starts)
        : starts_of_pieces_(std::move(starts)), units_(std::move(units)), activations_(std::move(activations)), offsets_(std::move(offsets)) {
        const bool ends_in_regression = !features.empty();
        for (const Kernels* kernels : instruction_sets())
            if (instruction_set == kernels->name) kernels_ = kernels;
        require(kernels_ != nullptr, "instruction_set: this processor does not have it");
        const int n_layers = int(units_.size());
        require(
            n_layers >= 2 && activations_.size() == units_.size() && offsets_.size() == units_.size(),
            "units, activations, offsets: must have one entry for each layer");
        for (int l = 0; l < n_layers; ++l)
            require(
                (ends_in_regression && l + 1 == n_layers ? units_[l] == 0 : units_[l] > 0) &&
                    offsets_[l] < n_parameters && (offsets_[l] < 0 || offsets_[l] + units_[l] <= n_parameters),
                "offsets: must lie within the parameters");
        require(offsets_.back() < 0, "offsets: must be negative for the outputs");
        require(
            inputs.ndim() == 2 && inputs.shape(0) == size_t(units_[0]) + 1,
            "inputs: must have one row for each input, then a row of ones");
        const size_t n_all = inputs.shape(1);
        require(n_all >= 1 && n_all < (1u << 30), "inputs: must have at least one case");
        require(batch >= 0 && size_t(batch) <= n_all, "batch: must be at most the number of cases");
        job_.n_batches = batch ? int((n_all + batch - 1) / batch) : 1;
        n_cases_ = int((n_all + job_.n_batches - 1) / job_.n_batches);
        is_double_ = inputs.dtype() == nb::dtype<double>();
        const auto* rows = static_cast<const char*>(
            data_of(inputs, "inputs", real(), {inputs.shape(0), n_all}));
        require(
            n_partitions >= 1 && n_partitions <= n_cases_,
            "n_partitions: must be between 1 and the number of cases");
        void* blas = gemm.is_none() ? nullptr : PyCapsule_GetPointer(gemm.ptr(), PyCapsule_GetName(gemm.ptr()));
        job_.gemm = reinterpret_cast<Gemm>(blas);
        for (const auto& [source, destination, start, n_units, has_biases] : links) {
            require(
                destination >= 1 && destination < n_layers && source >= 0 && source < destination,
                "links: must go from a layer to a later layer");
            require(
                n_units == 0 || n_units == units_[source],
                "links: must come from all units of a layer or from none");
            require(
                links_.empty() || links_.back().destination <= destination,
                "links: must be in the order of their destinations");
            const long size = long(n_units + has_biases) * units_[destination];
            require(start >= 0 && start + size <= n_parameters, "links: must lie within the parameters");
            const long n_weights = long(n_units) * units_[destination];
            const bool uses_blas = blas && n_weights >= blas_from, is_large = uses_blas || n_weights >= large_from;
            links_.push_back(
                {source, destination, start, n_units, units_[destination], has_biases, is_large, uses_blas});
        }
        int place = 0;
        for (const auto& [start, stop, segment_alpha] : segments) {
            require(start == place && stop >= start, "segments: must follow each other without a gap");
            segments_.push_back({start, stop, segment_alpha});
            place = stop;
        }
        require(place == n_parameters, "segments: must cover all parameters");
        require(
            n_targets >= 1 && (ends_in_regression ? n_rows == 0 : fits(model, units_.back(), n_targets, n_rows)),
            "n_targets, n_rows: must be those of the data model for these outputs");
        for (const auto& [start, stop, shape, rate] : integrated) {
            require(start >= 0 && start <= stop && stop <= n_parameters, "integrated: must lie within the parameters");
            integrated_.push_back({start, stop, shape, rate});
        }
        network_ = {n_layers, units_.data(), activations_.data(), offsets_.data(), int(links_.size()),
                    links_.data(), int(segments_.size()), segments_.data(), int(integrated_.size()),
                    integrated_.data(), model, alpha, n_targets, n_rows, n_parameters};
        job_.network = &network_;
        job_.n_partitions = n_partitions;
        job_.n_cases = n_cases_;
        job_.n_all = int(n_all);
        require(
            n_cells() == 1 || (n_cells() > 1 && model == 5 && batch == 0 && n_partitions == 1 &&
                               n_all % (n_cells() * Reduction::GROUP) == 0),
            "starts: must be one number, or of survival times in groups of cells");
        require(batch == 0 || (n_partitions == 1 && !ends_in_regression), "batch: must be 0 for blocks and regressions");
        if (ends_in_regression) regress(features, n_systems, n_each, is_dual, moved);
        cut(n_partitions, block_bytes);
        has_batches_ = batch > 0;
        if (has_batches_) return;
        // A regression has all cases in one block, which would be laid out again for each of its gradients.
        if (!ends_in_regression && inputs.nbytes() >= size_t(rows_from)) {
            caller_inputs_ = inputs;
            job_.rows = rows;
        } else {
            lay_out(rows);
        }
    }

    // Runs whole trajectories. Results are written to new_position, new_momentum, prior_energy and terms, as Job
    // describes.
    void advance(
        const Input& position, const Input& momentum, const Input& stepsizes, const Input& precisions,
        const Input& noise, const Input& powers, const Input& targets, nb::object weights, nb::object prior,
        nb::object order, int n_steps, const Output& new_position, const Output& new_momentum,
        const Output& prior_energy, const Output& terms) const {
        Job job = job_;
        const size_t n = chains_of(position);
        require(!has_batches_, "advance: has no meaning for batches");
        fill(job, n, precisions, noise, powers, targets, weights, prior);
        fill_state(job, n, position, momentum, stepsizes, new_position, new_momentum);
        job.prior_energy = doubles(prior_energy, "prior_energy", {n});
        job.terms = doubles(terms, "terms", {n});
        require(n_steps >= -1, "n_steps: must be at least 0, or -1 for a kick");
        require(n_steps >= 0 || order.is_none(), "order: has no meaning for a kick");
        job.n_steps = n_steps;
        require(
            (job_.n_partitions > 1) <= !order.is_none(),
            "order: must be given for partial gradients, and only for these");
        Input order_array;
        if (!order.is_none()) {
            order_array = nb::cast<Input>(order, false);
            job.order = static_cast<const long long*>(
                data_of(order_array, "order", nb::dtype<int64_t>(), {n, size_t(job_.n_partitions)}));
            for (size_t k = 0; k < n * job_.n_partitions; ++k)
                require(
                    job.order[k] >= 0 && job.order[k] < job_.n_partitions,
                    "order: must hold numbers of partitions");
        }
        run(job);
    }

    // Takes steps of dynamics with friction, as Friction describes.
    void follow(
        const Input& position, const Input& momentum, const Input& stepsizes, const Input& precisions,
        const Input& noise, const Input& powers, const Input& targets, nb::object weights, nb::object records,
        nb::object shuffles, long first_batch, int n_steps,
        const std::tuple<double, double, double, double, double>& factors,
        const PlaceNumbers& place, const Input& chains,
        const Output& new_position, const Output& new_momentum) const {
        Job job = job_;
        const size_t n = chains_of(position);
        fill(job, n, precisions, noise, powers, targets, weights, nb::none());
        fill_state(job, n, position, momentum, stepsizes, new_position, new_momentum);
        require(n_steps >= 1 && job.n_partitions == 1, "n_steps, n_partitions: must be at least 1, and 1");
        job.n_steps = n_steps;
        StreamPlace of_passes;
        const Input kept = fill_batches(job, n, records, shuffles, chains, first_batch, of_passes);
        const auto [first, second, persistence, noise_factor, kick] = factors;
        const rayfbnn::Friction friction = {
            first, second, persistence, noise_factor, kick, place_of(place, chains, n)};
        job.friction = &friction;
        run(job);
    }

    // Takes steps of Bayes by Backprop, as Variational describes.
    void variational(
        const Output& mean, const Output& rho, const Output& first, const Output& second, const Input& precisions,
        const Input& noise, const Input& powers, const Input& targets, nb::object weights, nb::object records,
        nb::object shuffles, long first_batch, int n_steps, int n_draws, bool is_antithetic,
        const std::tuple<double, double, double>& decays,
        const Schedule& schedule, const PlaceNumbers& place,
        const Input& chains, const Output& log_widths, const Output& prior_energy, const Output& terms) const {
        Job job = job_;
        const size_t n = mean.ndim() > 0 ? mean.shape(0) : 0, n_parameters = network_.n_parameters;
        fill(job, n, precisions, noise, powers, targets, weights, nb::none());
        require(n_steps >= 1 && job.n_partitions == 1, "n_steps, n_partitions: must be at least 1, and 1");
        require(n_draws >= 1 && (!is_antithetic || n_draws % 2 == 0), "n_draws: must be at least 1, and even for pairs");
        job.n_steps = n_steps;
        const size_t n_times = n_steps;
        job.prior_energy = doubles(prior_energy, "prior_energy", {n_times, n});
        job.terms = doubles(terms, "terms", {n_times, n});
        StreamPlace of_passes;
        const Input kept = fill_batches(job, n, records, shuffles, chains, first_batch, of_passes);
        const std::vector<size_t> shape = {n, n_parameters}, moments = {n, 2 * n_parameters};
        const auto [first_decay, second_decay, small] = decays;
        const std::vector<double> rates = rates_of(schedule, n_steps, first_decay, second_decay);
        const rayfbnn::Variational fit = {
            n_draws, is_antithetic, first_decay, second_decay, small, rates.data(),
            doubles(mean, "mean", shape), doubles(rho, "rho", shape),
            doubles(first, "first", moments), doubles(second, "second", moments),
            doubles(log_widths, "log_widths", {n_times, n}), place_of(place, chains, n)};
        job.variational = &fit;
        run(job);
    }

    // The functions below evaluate the networks of draws, positions (n_draws, n_parameters), at all cases, and add sums
    // over the draws to their last arguments, as Reduction describes.

    void outputs(const Input& positions, const Output& outputs) const {
        Reduction wanted{Reduction::OUTPUTS};
        const size_t n_cells = n_cases_;
        wanted.outputs = data_of(outputs, "outputs", real(), {chains_of(positions), size_t(units_.back()), n_cells});
        reduce(wanted, positions);
    }

    void add_moments(
        const Input& positions, const nb::object& shapes, const Input& pieces, const Input& shift, const Output& sums,
        const Output& squares, const Output& variances) const {
        Reduction wanted{Reduction::MOMENTS};
        fill_shapes(wanted, shapes, chains_of(positions));
        const size_t n = chains_of(positions), n_pieces = sums.ndim() > 0 ? sums.shape(0) : 0;
        const size_t n_values = network_.model == 6 ? units_.back() / 2 : units_.back();
        wanted.n_values = int(n_values);
        wanted.pieces = static_cast<const int*>(data_of(pieces, "pieces", nb::dtype<int32_t>(), {n}));
        for (size_t k = 0; k < n; ++k)
            require(wanted.pieces[k] >= 0 && size_t(wanted.pieces[k]) < n_pieces, "pieces: must be numbers of sums");
        wanted.shift = doubles(shift, "shift", {n_values, cases()});
        wanted.sums = doubles(sums, "sums", {n_pieces, n_values, cases()});
        wanted.squares = doubles(squares, "squares", {n_values, cases()});
        wanted.variances = doubles(variances, "variances", {n_values, cases()});
        reduce(wanted, positions);
    }

    void add_scores(
        const Input& positions, nb::object noise, const Input& normalisers, const Input& targets, nb::object weights,
        const Output& maxima, const Output& scaled) const {
        Reduction wanted{Reduction::SCORES};
        const size_t n = chains_of(positions), n_rows = network_.n_rows, n_targets = network_.n_targets;
        require(noise.is_none() != network_.has_taus(), "noise: must be given for real targets and for dispersion alone");
        if (!noise.is_none()) wanted.noise = doubles(nb::cast<Input>(noise, false), "noise", {n, n_targets});
        wanted.normalisers = doubles(normalisers, "normalisers", {n, n_targets});
        wanted.targets = doubles(targets, "targets", {n_rows, size_t(n_cases_)});
        if (!weights.is_none())
            wanted.weights = doubles(nb::cast<Input>(weights, false), "weights", {n_targets, cases()});
        wanted.maxima = doubles(maxima, "maxima", {cases()});
        wanted.scaled = doubles(scaled, "scaled", {cases()});
        reduce(wanted, positions);
    }

    void add_distribution(
        const Input& positions, nb::object sigmas, const nb::object& shapes, const Input& guesses, nb::object constants,
        nb::object table, double table_rate, const Output& sums) const {
        const int model = network_.model;
        require(model != 2 && model != 3, "model: labels have no distribution");
        Reduction wanted{Reduction::DISTRIBUTION};
        const size_t n = chains_of(positions), n_targets = network_.n_targets;
        const bool is_real = model <= 1 || model == 6;
        require(sigmas.is_none() == (model > 1), "sigmas: must be given for common noise, and only for this");
        if (!sigmas.is_none()) wanted.sigmas = doubles(nb::cast<Input>(sigmas, false), "sigmas", {n, n_targets});
        fill_shapes(wanted, shapes, n);
        fill_guesses(wanted, guesses, is_real ? real() : nb::dtype<double>(), constants);
        require(table.is_none() == (model != 1), "table: must be given for t noise, and only for this");
        if (!table.is_none()) {
            const Input cubics = nb::cast<Input>(table, false);
            const size_t n_places = cubics.ndim() > 0 ? cubics.shape(0) : 0;
            require(n_places > 0 && table_rate > 0, "table: must have intervals");
            wanted.table = doubles(cubics, "table", {n_places, 4});
            wanted.n_places = int(n_places), wanted.table_rate = table_rate;
        }
        wanted.sums = doubles(sums, "sums", {3, size_t(wanted.n_guesses), n_targets, cases()});
        reduce(wanted, positions);
    }

    void add_mass(
        const Input& positions, const nb::object& shapes, const Input& counts, nb::object constants,
        const Output& sums) const {
        require(are_counts(), "model: must be of counts");
        Reduction wanted{Reduction::MASS};
        fill_shapes(wanted, shapes, chains_of(positions));
        fill_guesses(wanted, counts, nb::dtype<double>(), constants);
        wanted.sums = doubles(sums, "sums", {size_t(wanted.n_guesses), size_t(network_.n_targets), cases()});
        reduce(wanted, positions);
    }

   private:
    int n_cells() const { return int(starts_of_pieces_.size()); }
    size_t cases() const { return size_t(n_cases_ / n_cells()); }

    bool are_counts() const { return network_.model == 4 || network_.model == 7; }

    // Takes the numbers of each draw's shapes.
    void fill_shapes(Reduction& wanted, const nb::object& shapes, size_t n) const {
        require(shapes.is_none() == (network_.model != 7), "shapes: must be given for dispersion, and only for this");
        if (shapes.is_none()) return;
        wanted.shapes = doubles(nb::cast<Input>(shapes, false), "shapes", {n, size_t(network_.n_targets), 4});
    }

    // Takes guesses (n_guesses, n_targets, n_cases), and for counts log_counts and peaks of Reduction, (2, ...).
    void fill_guesses(
        Reduction& wanted, const Input& guesses, nb::dlpack::dtype dtype, const nb::object& constants) const {
        const size_t n_guesses = guesses.ndim() > 0 ? guesses.shape(0) : 0, n_targets = network_.n_targets;
        wanted.n_guesses = int(n_guesses);
        wanted.guesses = data_of(guesses, "guesses", dtype, {n_guesses, n_targets, cases()});
        require(constants.is_none() != are_counts(), "constants: must be given for counts, and only for these");
        if (constants.is_none()) return;
        const Input given = nb::cast<Input>(constants, false);
        wanted.log_counts = doubles(given, "constants", {2, n_guesses, n_targets, cases()});
        wanted.peaks = wanted.log_counts + n_guesses * n_targets * cases();
    }

    void reduce(Reduction& wanted, const Input& positions) const {
        wanted.n_cells = n_cells(), wanted.starts = starts_of_pieces_.data();
        Job job = job_;
        const size_t n = chains_of(positions);
        require(
            !has_batches_ && job.n_partitions == 1 && !job.rows && features_.empty(),
            "reductions are of whole networks at all cases");
        job.n_chains = int(n);
        job.position = data_of(positions, "positions", real(), {n, size_t(network_.n_parameters)});
        job.reduction = &wanted;
        nb::gil_scoped_release unlocked;
        (is_double_ ? kernels_->reduce_double : kernels_->reduce_float)(job);
    }

    nb::dlpack::dtype real() const { return is_double_ ? nb::dtype<double>() : nb::dtype<float>(); }
    int width() const { return is_double_ ? kernels_->double_width : kernels_->float_width; }
    size_t real_bytes() const { return is_double_ ? 8 : 4; }

    static size_t chains_of(const Input& position) { return position.ndim() > 0 ? position.shape(0) : 0; }

    void fill(
        Job& job, size_t n, const Input& precisions, const Input& noise, const Input& powers, const Input& targets,
        const nb::object& weights, const nb::object& prior) const {
        const size_t n_parameters = network_.n_parameters, n_rows = network_.n_rows, n_targets = network_.n_targets;
        job.n_chains = int(n);
        job.precisions = doubles(precisions, "precisions", {n, n_parameters});
        job.powers = doubles(powers, "powers", {n});
        require(prior.is_none() == features_.empty(), "prior: must be given for a regression, and only for one");
        if (!prior.is_none()) {
            fill_regression(job.regression, n, noise, targets, nb::cast<Input>(prior, false));
            return;
        }
        job.noise = doubles(noise, "noise", {n, network_.has_taus() ? n_targets : 0});
        job.targets = rows_of(targets, "targets", n, n_rows, job.targets_step);
        job.weights = nullptr;
        if (!weights.is_none())
            job.weights = rows_of(nb::cast<Input>(weights, false), "weights", n, n_targets, job.weights_step);
    }

    void fill_state(
        Job& job, size_t n, const Input& position, const Input& momentum, const Input& stepsizes,
        const Output& new_position, const Output& new_momentum) const {
        const std::vector<size_t> shape = {n, size_t(network_.n_parameters)};
        job.position = data_of(position, "position", real(), shape);
        job.momentum = data_of(momentum, "momentum", real(), shape);
        job.stepsizes = data_of(stepsizes, "stepsizes", real(), shape);
        job.new_position = data_of(new_position, "new_position", real(), shape);
        job.new_momentum = data_of(new_momentum, "new_momentum", real(), shape);
    }

    // Takes the records of cases, which must live as long as what is returned, and the place of the random orders.
    Input fill_batches(
        Job& job, size_t n, const nb::object& records, const nb::object& shuffles, const Input& chains,
        long first_batch, StreamPlace& of_passes) const {
        require(
            shuffles.is_none() != has_batches_ && records.is_none() != has_batches_,
            "shuffles, records: must be given for batches, and only for these");
        if (!has_batches_) return {};
        const Input of_cases = nb::cast<Input>(records, false);
        const long n_columns = units_[0] + network_.n_rows + (job.weights ? network_.n_targets : 0);
        job.record_size = (n_columns + 3) / 4 * 4;
        job.records_step = of_cases.ndim() == 3 ? job.n_all * job.record_size : 0;
        std::vector<size_t> shape = {size_t(job.n_all), size_t(job.record_size)};
        if (job.records_step) shape.insert(shape.begin(), n);
        job.records = data_of(of_cases, "records", real(), shape);
        of_passes = place_of(nb::cast<PlaceNumbers>(shuffles, false), chains, n);
        job.shuffles = &of_passes;
        job.first_batch = first_batch;
        require(first_batch >= 0, "first_batch: must be at least 0");
        return of_cases;
    }

    // Shapes: noise (n, n_systems, n_cases or 1), targets (n or 1, n_systems, n_each, n_cases), prior (n, n_systems,
    // n_features).
    void fill_regression(
        rayfbnn::Regression& regression, size_t n, const Input& noise, const Input& targets, const Input& prior) const {
        const auto float64 = nb::dtype<double>();
        const size_t n_systems = regression.n_systems, n_each = regression.n_each, n_cases = n_cases_;
        regression.is_uniform = noise.ndim() == 3 && noise.shape(2) == 1;
        const bool by_chain = targets.ndim() == 4 && targets.shape(0) != 1;
        regression.noise = static_cast<const double*>(
            data_of(noise, "noise", float64, {n, n_systems, regression.is_uniform ? 1 : n_cases}));
        regression.targets = static_cast<const double*>(
            data_of(targets, "targets", float64, {by_chain ? n : 1, n_systems, n_each, n_cases}));
        regression.targets_step = by_chain ? long(n_systems * n_each * n_cases) : 0;
        regression.prior = static_cast<const double*>(
            data_of(prior, "prior", float64, {n, n_systems, size_t(regression.n_features)}));
    }

    void regress(
        const std::vector<std::tuple<int, int>>& features, int n_systems, int n_each, bool is_dual,
        const std::vector<std::tuple<int, int, double, double>>& moved) {
        const int n_hidden = int(units_.size()) - 1, n_features = int(features.size());
        for (const auto& [layer, row] : features) {
            require(
                layer >= 0 && layer < n_hidden && row >= -1 && row < units_[layer],
                "features: must be units of the inputs and hidden layers");
            features_.push_back({layer, row});
        }
        for (const auto& [first, stop, half, mean] : moved) {
            require(first >= 0 && first <= stop && stop <= n_features, "moved: must lie within the features");
            moved_.push_back({first, stop, half, mean});
        }
        for (const Link& link : links_)
            require(link.destination < n_hidden, "links: must not go to the last layer of a regression");
        require(job_.n_partitions == 1, "n_partitions: must be 1 for a regression");
        require(n_systems >= 1 && n_each >= 1, "n_systems, n_each: must be at least 1");
        require(int(moved_.size()) <= network_.n_parameters, "moved: must have one parameter each");
        job_.regression = {n_features, n_systems, n_each, n_cases_, int(moved_.size()), is_dual, true,
                           features_.data(), moved_.data(), nullptr, nullptr, nullptr, 0};
    }

    // Rows (n_rows, n_cases) that all chains share, with step 0, or (n_chains, n_rows, n_cases) with the step between
    // chains.
    const double* rows_of(const Input& array, const char* name, size_t n, size_t n_rows, long& step) const {
        const bool by_chain = array.ndim() == 3;
        step = by_chain ? long(n_rows) * job_.n_all : 0;
        const size_t n_cases = job_.n_all;
        return static_cast<const double*>(data_of(
            array, name, nb::dtype<double>(),
            by_chain ? std::vector<size_t>{n, n_rows, n_cases} : std::vector<size_t>{n_rows, n_cases}));
    }

    void run(const Job& job) const {
        nb::gil_scoped_release unlocked;
        (is_double_ ? kernels_->run_double : kernels_->run_float)(job);
    }

    // Cuts the N cases into K partitions and these into blocks. Partition k holds the cases floor(N k/K) to
    // floor(N (k+1)/K) - 1, as in model/cases.py. The values and derivatives of a block stay in cache.
    void cut(int n_partitions, long block_bytes) {
        long rows = units_[0] + 2 * units_.back();
        for (size_t l = 1; l + 1 < units_.size(); ++l) rows += 2 * units_[l];
        bool is_large = false;
        for (const Link& link : links_) is_large |= link.is_large;
        const long pack_bytes = width() * long(real_bytes());
        if (block_bytes == 0) block_bytes = BLOCK_BYTES;
        long packs = std::max(5L, block_bytes / (rows * pack_bytes));
        // The gradient of a large link is added up over the places of packs after each block. Blocks must therefore not
        // be short, and have 30 to 90 packs.
        if (is_large) packs = std::max(packs, 60L);
        if (!features_.empty()) packs = n_cases_;  // a regression needs all cases in one block
        starts_.resize(n_partitions);
        for (int k = 0; k < n_partitions; ++k) {
            const int first = int(long(n_cases_) * k / n_partitions);
            const int n = int(long(n_cases_) * (k + 1) / n_partitions) - first;
            const int n_packs = (n + width() - 1) / width();
            // Packs of cells that belong together.
            const int together = n_cells() == 1 ? 1 : n_cells() * Reduction::GROUP / width();
            const int n_units = n_packs / together;
            const int wanted = std::max(1, int((n_packs + (is_large ? packs / 2 : packs - 1)) / packs));
            const int n_blocks = std::min(wanted, n_units);
            for (int b = 0; b <= n_blocks; ++b) starts_[k].push_back(together * int(long(n_units) * b / n_blocks));
            for (int b = 0; b < n_blocks; ++b)
                job_.largest_block = std::max(job_.largest_block, starts_[k][b + 1] - starts_[k][b]);
            partitions_.push_back({first, n, n_packs, n_blocks, starts_[k].data(), nullptr});
        }
        job_.partitions = partitions_.data();
    }

    // Copies the inputs to packs, block after block.
    void lay_out(const char* rows) {
        const size_t size = real_bytes();
        long n_packs = 0;
        for (const Partition& partition : partitions_) n_packs += partition.n_packs;
        inputs_ = Buffer<char>(size_t(n_packs) * width() * units_[0] * size);
        char* place = inputs_;
        for (Partition& partition : partitions_) {
            partition.inputs = place;
            const int* starts = partition.block_starts;
            for (int b = 0; b < partition.n_blocks; ++b)
                for (int i = 0; i < units_[0]; ++i)
                    for (int c = starts[b] * width(); c < starts[b + 1] * width(); ++c) {
                        const long number = partition.first + std::min(c, partition.n_cases - 1);
                        std::memcpy(place, rows + (long(i) * n_cases_ + number) * size, size);
                        place += size;
                    }
        }
    }

    const Kernels* kernels_ = nullptr;
    std::vector<double> starts_of_pieces_;
    std::vector<int> units_, activations_, offsets_;
    std::vector<Link> links_;
    std::vector<Segment> segments_;
    std::vector<Integrated> integrated_;
    std::vector<Feature> features_;
    std::vector<Moved> moved_;
    std::vector<std::vector<int>> starts_;
    std::vector<Partition> partitions_;
    Buffer<char> inputs_;
    Input caller_inputs_;
    Network network_ = {};
    Job job_ = {};
    int n_cases_ = 0;
    bool is_double_ = false, has_batches_ = false;
};

}  // namespace
}  // namespace rayfbnn
#endif
