from webhook.errors import message_of


def test_an_error_without_a_text_is_named_by_its_type() -> None:
    assert message_of(TimeoutError()) == "TimeoutError"
    assert message_of(OSError("no route")) == "no route"
