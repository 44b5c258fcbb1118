"""A slip in a name, and the name that is meant."""

from policies.kube.names import closest, containing, did_you_mean

KNOWN = ("standard-probes", "gpu-affinity", "gpu-unschedulable", "tcp-probe")


def test_a_slip_finds_the_name_that_is_meant() -> None:
    assert closest("standart-probes", KNOWN) == "standard-probes"
    assert closest("zzz", KNOWN) == ""
    assert closest("tcp-probes", KNOWN, least=0.99) == ""
    assert closest("standard-probes" * 100, KNOWN) == "", "too long to be compared"
    assert did_you_mean("gpu-afinity", KNOWN) == "; did you mean gpu-affinity?"
    assert did_you_mean("zzz", KNOWN) == ""


def test_a_part_of_a_name_finds_those_that_hold_it() -> None:
    assert containing("probes", KNOWN) == ["standard-probes"]
    assert containing("gpu", KNOWN) == ["gpu-affinity", "gpu-unschedulable"]
    assert containing("affinity-gpu", KNOWN) == ["gpu-affinity"]
    assert containing("Probes", KNOWN) == ["standard-probes"]
    assert containing("prob", KNOWN) == []
