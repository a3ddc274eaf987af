"""Attaching to servers that someone else runs."""

from __future__ import annotations

import json

import pytest

from loadtest.errors import EndpointError
from loadtest.model import ConfigSpec, TargetSpec
from loadtest.server.attach import attach

TARGET = TargetSpec("/models/target", served_name="target")


def models(*names):
    return json.dumps({"object": "list", "data": [{"id": n} for n in names]}).encode()


def config(*urls, **more):
    return ConfigSpec("remote", "none", None, urls=urls, **more)


def test_replicas_behind_a_router_keep_their_own_metrics_urls(web, reply):
    web.pages["/v1/models"] = reply(models("target"))
    server = attach(config(web.url, metrics_urls=("http://a:1/metrics", "http://b:1/metrics")), TARGET)
    assert server.base_urls == (web.url,)
    assert server.metrics_urls == ("http://a:1/metrics", "http://b:1/metrics")
    assert (server.model_name, server.fingerprint, server.started_by_us) == ("target", None, False)
    server.stop()
    assert attach(config(web.url), TARGET).base_urls == (web.url,), "stop leaves the server alone"


def test_metrics_urls_default_to_those_of_the_urls(web, reply):
    web.pages["/v1/models"] = reply(models("other", "target"))
    server = attach(config(web.url + "/v1/", web.url + "/"), TARGET)
    assert server.base_urls == (web.url, web.url)
    assert server.metrics_urls == (f"{web.url}/metrics",) * 2


def test_the_key_goes_from_the_environment_to_the_server(web, reply, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-77")
    web.pages["/v1/models"] = reply(models("target"))
    attach(config(web.url), TARGET, headers={"X-Team": "load"})
    headers = {k.lower(): v for k, v in web.seen[0][1].items()}
    assert headers["authorization"] == "Bearer sk-77"
    assert headers["x-team"] == "load"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((b'{"error":"no key"}', 401), "export OPENAI_API_KEY. Seen: HTTP 401"),
        ((b"<html>nginx</html>", 404), "Give the URL without a path, or with /v1. Seen: HTTP 404: <html>nginx"),
        ((b"<html>welcome</html>", 200), "should answer 200 with a list of models. Seen: HTTP 200: <html>welcome"),
        ((b'{"data":[]}', 200), "should answer 200 with a list of models"),
        ((b'{"data":[{"name":1}, 3]}', 200), "should answer 200 with a list of models"),
        ((models("base"), 200), "serves 'base', not 'target'; set target.served_model_name"),
    ],
)
def test_what_is_no_server_of_the_model_is_refused_with_what_was_seen(web, reply, answer, words):
    web.pages["/v1/models"] = reply(*answer)
    with pytest.raises(EndpointError) as caught:
        attach(config(web.url), TARGET)
    assert words in str(caught.value)
    assert web.url in str(caught.value)


def test_nobody_there():
    with pytest.raises(EndpointError, match="Check the address and that the server runs") as caught:
        attach(config("http://127.0.0.1:9"), TARGET)
    assert "refused" in str(caught.value)
