// The Python module rayfbnn.kernels.cpu._cpu: the class Kernel, and random numbers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <tuple>
#include <vector>

#include "python/kernel.hpp"
#include "shared/random.hpp"

namespace nb = nanobind;

namespace rayfbnn {
namespace {

// Write the uniform numbers (n_chains, n) of a request of all chains.
void write_uniforms(
    const std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>& place,
    const nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& chains,
    const nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>& values) {
    require(values.shape(0) == chains.shape(0), "values: must have a row for each chain");
    const auto [seed, use, operation, iteration] = place;
    const Place at{seed, use, operation, iteration};
    const size_t n = values.shape(1);
    for (size_t row = 0; row < chains.shape(0); ++row)
        uniforms(at, uint32_t(chains.data()[row]), n, values.data() + row * n);
}

// Write the orders (n_passes, n_chains, n) of all chains, those of each pass in its own iteration.
void write_shuffles(
    const std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>& place, const Input& chains, const Output& orders) {
    require(orders.ndim() == 3, "orders: must have the shape (n_passes, n_chains, n)");
    const size_t n_passes = orders.shape(0), n_chains = orders.shape(1), n = orders.shape(2);
    require(n < (1u << 30), "orders: must be of at most 2**30 numbers");
    auto* to = static_cast<int*>(data_of(orders, "orders", nb::dtype<int32_t>(), {n_passes, n_chains, n}));
    const StreamPlace at = place_of(place, chains, n_chains);
    instruction_sets().front()->write_shuffles(at, int(n_chains), int(n_passes), long(n), to);
}

// Write the normal numbers (n_chains, n) of a request of all chains, by the best instruction set.
void write_normals(
    const std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>& place, const Input& chains, const Output& values) {
    require(values.ndim() == 2, "values: must have a row for each chain");
    const size_t n_chains = values.shape(0), n = values.shape(1);
    auto* to = static_cast<float*>(data_of(values, "values", nb::dtype<float>(), {n_chains, n}));
    const StreamPlace at = place_of(place, chains, n_chains);
    for (size_t row = 0; row < n_chains; ++row)
        instruction_sets().front()->write_normals(at, int(row), 0, long(n), to + row * n);
}

}  // namespace
}  // namespace rayfbnn

NB_MODULE(_cpu, module) {
    using namespace rayfbnn;
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const OutOfMemory&) {
            PyErr_NoMemory();
        }
    });
    module.doc() = "Compiled trajectories of networks; see compiled_module.py.";
    module.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (const Kernels* kernels : instruction_sets()) names.push_back(kernels->name);
            return names;
        },
        "Names of the instruction sets that this processor has, the best one first.");
    module.def(
        "write_uniforms", &write_uniforms, nb::kw_only(), nb::arg("place"), nb::arg("chains").noconvert(), nb::arg("values").noconvert(),
        "Write the uniform numbers of streams.py for a request of all chains.");
    module.def(
        "write_normals", &write_normals, nb::kw_only(), nb::arg("place"), nb::arg("chains").noconvert(),
        nb::arg("values").noconvert(), "Write the normal numbers of streams.py for a request of all chains.");
    module.def(
        "write_shuffles", &write_shuffles, nb::kw_only(), nb::arg("place"), nb::arg("chains").noconvert(),
        nb::arg("orders").noconvert(), "Write the orders of streams.py for a request of all chains.");
    nb::class_<Kernel>(module, "Kernel")
        .def(
            nb::init<
                const std::string&, std::vector<int>, std::vector<int>, std::vector<int>,
                const std::vector<std::tuple<int, int, int, int, bool>>&,
                const std::vector<std::tuple<int, int, double>>&, int, double, int, int, int, const Input&, int, int,
                nb::object, long, long, long, long, const std::vector<std::tuple<int, int, double, double>>&,
                const std::vector<std::tuple<int, int>>&, int, int, bool,
                const std::vector<std::tuple<int, int, double, double>>&, std::vector<double>>(),
            nb::kw_only(), nb::arg("instruction_set"), nb::arg("units"), nb::arg("activations"), nb::arg("offsets"),
            nb::arg("links"), nb::arg("segments"), nb::arg("model"), nb::arg("alpha"), nb::arg("n_targets"),
            nb::arg("n_rows"), nb::arg("n_parameters"), nb::arg("inputs").noconvert(), nb::arg("batch"),
            nb::arg("n_partitions"),
            nb::arg("gemm").none(), nb::arg("large_from"), nb::arg("blas_from"), nb::arg("block_bytes"),
            nb::arg("rows_from"), nb::arg("integrated"), nb::arg("features"), nb::arg("n_systems"), nb::arg("n_each"),
            nb::arg("is_dual"), nb::arg("moved"), nb::arg("starts"))
        .def(
            "advance", &Kernel::advance, nb::kw_only(), nb::arg("position").noconvert(),
            nb::arg("momentum").noconvert(), nb::arg("stepsizes").noconvert(), nb::arg("precisions").noconvert(),
            nb::arg("noise").noconvert(), nb::arg("powers").noconvert(), nb::arg("targets").noconvert(),
            nb::arg("weights").none(), nb::arg("prior").none(), nb::arg("order").none(), nb::arg("n_steps"),
            nb::arg("new_position").noconvert(), nb::arg("new_momentum").noconvert(),
            nb::arg("prior_energy").noconvert(), nb::arg("terms").noconvert())
        .def(
            "follow", &Kernel::follow, nb::kw_only(), nb::arg("position").noconvert(),
            nb::arg("momentum").noconvert(), nb::arg("stepsizes").noconvert(), nb::arg("precisions").noconvert(),
            nb::arg("noise").noconvert(), nb::arg("powers").noconvert(), nb::arg("targets").noconvert(),
            nb::arg("weights").none(), nb::arg("records").none(), nb::arg("shuffles").none(), nb::arg("first_batch"), nb::arg("n_steps"),
            nb::arg("factors"),
            nb::arg("place"), nb::arg("chains").noconvert(), nb::arg("new_position").noconvert(),
            nb::arg("new_momentum").noconvert())
        .def(
            "variational", &Kernel::variational, nb::kw_only(), nb::arg("mean").noconvert(),
            nb::arg("rho").noconvert(), nb::arg("first").noconvert(), nb::arg("second").noconvert(),
            nb::arg("precisions").noconvert(), nb::arg("noise").noconvert(), nb::arg("powers").noconvert(),
            nb::arg("targets").noconvert(), nb::arg("weights").none(), nb::arg("records").none(), nb::arg("shuffles").none(),
            nb::arg("first_batch"), nb::arg("n_steps"),
            nb::arg("n_draws"), nb::arg("is_antithetic"), nb::arg("decays"), nb::arg("schedule"),
            nb::arg("place"), nb::arg("chains").noconvert(), nb::arg("log_widths").noconvert(),
            nb::arg("prior_energy").noconvert(), nb::arg("terms").noconvert())
        .def(
            "outputs", &Kernel::outputs, nb::kw_only(), nb::arg("positions").noconvert(), nb::arg("outputs").noconvert())
        .def(
            "add_moments", &Kernel::add_moments, nb::kw_only(), nb::arg("positions").noconvert(), nb::arg("shapes").none(), nb::arg("pieces").noconvert(), nb::arg("shift").noconvert(), 
            nb::arg("sums").noconvert(), nb::arg("squares").noconvert(), nb::arg("variances").noconvert())
        .def(
            "add_scores", &Kernel::add_scores, nb::kw_only(), nb::arg("positions").noconvert(), nb::arg("noise").none(), 
            nb::arg("normalisers").noconvert(), nb::arg("targets").noconvert(), nb::arg("weights").none(), 
            nb::arg("maxima").noconvert(), nb::arg("scaled").noconvert())
        .def(
            "add_distribution", &Kernel::add_distribution, nb::kw_only(), nb::arg("positions").noconvert(), nb::arg("sigmas").none(), nb::arg("shapes").none(),
            nb::arg("guesses").noconvert(), nb::arg("constants").none(), nb::arg("table").none(), nb::arg("table_rate"),
            nb::arg("sums").noconvert())
        .def(
            "add_mass", &Kernel::add_mass, nb::kw_only(), nb::arg("positions").noconvert(), nb::arg("shapes").none(), nb::arg("counts").noconvert(),
            nb::arg("constants").none(), nb::arg("sums").noconvert());
}
