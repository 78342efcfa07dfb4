"""The status page in a real browser: what it shows, on which screens, and what it escapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from mirror_pump.model import TableMode, TableState
from mirror_pump.ops.status.alerts import alerts_of
from mirror_pump.ops.status.status_report import Alert, Severity
from tests.support.monitored import Served, served, some_of_everything, table

pytestmark = pytest.mark.further

_HOSTILE = '<img src=x onerror="window.hacked=1">'
_SCRIPT = "</script><script>window.hacked=1</script>`<svg onload=window.hacked=1>`"

Open = Callable[..., Page]


@pytest.fixture
def mirror() -> Iterator[Served]:
    with served(some_of_everything()) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page and waits until it has been drawn. The browser's console must stay empty: no error, no violated
    policy."""
    problems: list[str] = []
    pages: list[Page] = []

    def open_at(
        url: str,
        *,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
        wait_for: str = "#tables tr",
        clock: bool = False,
    ) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 812}, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        if clock:
            page.clock.install()
        page.goto(url)
        page.wait_for_selector(wait_for, state="attached")
        return page

    yield open_at
    for page in pages:
        page.close()
    # The browser reports failed requests on the console; some tests have them.
    assert [text for text in problems if not text.startswith("Failed to load resource:")] == []


def test_it_shows_some_of_everything(mirror: Served, open_page: Open) -> None:
    page = open_page(mirror.url)
    rows = page.locator("#tables tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()][:2] == ["public.notes", "public.order_items"]
    notes = rows.filter(has_text="public.notes")
    expect(notes).to_contain_text("failed")
    expect(notes.locator(".do")).to_contain_text("its type is not supported any more")
    expect(notes.locator(".do")).to_contain_text("mirror-pump register")
    expect(page.locator("#tiles")).to_contain_text("16/B3740000")
    expect(page.locator("#tiles")).to_contain_text("10.0 GiB until invalidation")
    expect(page.locator("#copies")).to_contain_text("23 of 64 chunks")
    expect(page.locator("#copies")).to_contain_text("left")
    assert page.locator("#copies progress").get_attribute("value") == "23"
    expect(page.locator("#slot")).to_contain_text("transaction of process 912 (psql), open for 12 min 12 s")
    expect(page.locator("#retention")).to_contain_text("sealing 1")
    expect(page.locator("#retention")).to_contain_text("pin 4711 of a reader")
    expect(page.locator("#due")).to_contain_text("remove orphan files")
    expect(page.locator("#alerts")).to_contain_text("no maintenance for more than a day")
    expect(page.locator("#pumps")).to_contain_text("process 4711 on pump-2")
    expect(page.locator("#phase")).to_have_text("streaming")
    assert page.title() == "1 problem · shop"


def test_tables_without_retention_show_no_pins_and_tiered_ones_their_partitions(open_page: Open) -> None:
    status = some_of_everything()
    retention = next(each.retention for each in status.tables if each.retention is not None)
    pinned = table("public.pinned", retention=replace(retention, has_cutline=False))
    tiered = table("public.tiered", retention=replace(retention, mode=TableMode.TIERED, pins=0))
    with served(replace(status, tables=(pinned, tiered))) as running:
        page = open_page(running.url)
        expect(page.locator("#retention .name")).to_have_text(["public.tiered"])


def test_the_plot_has_the_hour_with_its_peak_and_its_gap(mirror: Served, open_page: Open) -> None:
    page = open_page(mirror.url)
    plot = page.locator("#lag-plot svg")
    label = str(plot.get_attribute("aria-label"))
    assert "at most 14 s" in label or "at most 15 s" in label
    assert page.locator("#lag-plot .line").count() == 2, "two lines with a gap between them"
    page.locator("#lag-plot").hover(position={"x": 300, "y": 80})
    expect(page.locator("#lag-plot .reading")).to_contain_text(" at ")


def test_it_loads_nothing_but_itself(browser: Browser, mirror: Served) -> None:
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(mirror.url)
    page.wait_for_selector("#tables tr")
    page.close()
    # The icon is part of the page, too.
    paths = {url.removeprefix(mirror.url) for url in requests if not url.startswith("data:")}
    assert paths == {"/", "/status.json", "/history.json"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_it_is_accessible_and_fits_the_screen(
    mirror: Served, open_page: Open, width: int, scheme: Literal["light", "dark"]
) -> None:
    page = open_page(mirror.url, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = Axe().run(page).response["violations"]
    assert [(found["id"], [node["html"] for node in found["nodes"]]) for found in violations] == []


def test_names_and_texts_of_the_database_are_only_text(open_page: Open) -> None:
    status = some_of_everything()
    hostile = (
        table(_HOSTILE, note=_SCRIPT),
        table(f'public."{_HOSTILE}"', TableState.COPYING, chunks_total=3, chunks_done=1),
        table("public." + "n" * 63, TableState.FAILED, error=_SCRIPT),
        *(replace(each, table=_SCRIPT) for each in status.tables if each.retention or each.maintenance),
    )
    status = replace(status, database=_HOSTILE, warehouse=_SCRIPT, tables=hostile)
    alert = Alert(Severity.CRITICAL, _SCRIPT, f"`{_HOSTILE}`", _HOSTILE)
    with served(replace(status, alerts=(alert, *alerts_of(status)))) as running:
        page = open_page(running.url, width=375)
        # As the browser would have requested it if it were an image.
        expect(page.locator("#tables").get_by_role("rowheader", name=_HOSTILE, exact=True)).to_have_text(_HOSTILE)
        expect(page.locator("#database")).to_have_text(_HOSTILE)
        expect(page.locator("#alerts")).to_contain_text("<svg onload=window.hacked=1>")
        expect(page.locator("#copies .name")).to_have_text(f'public."{_HOSTILE}"')
        assert page.locator("img, main svg image, body script:not(:last-of-type)").count() == 0
        assert page.locator("script").count() == 1
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_it_follows_the_mirror_without_a_reload(mirror: Served, open_page: Open) -> None:
    page = open_page(mirror.url, clock=True)
    page.locator("#search").fill("stock")
    expect(page.locator("#tables tr")).to_have_count(1)
    status = some_of_everything()
    failed = table("public.stock_levels", TableState.FAILED, error="no room")
    mirror.source.status = replace(status, tables=(*status.tables[:-1], failed), alerts=())
    page.clock.run_for(6_000)
    expect(page.locator("#tables .pill")).to_have_text("failed")
    expect(page.locator("#search")).to_have_value("stock")
    expect(page.locator("#problems")).to_be_hidden()


def test_tables_are_chosen_by_state(mirror: Served, open_page: Open) -> None:
    page = open_page(mirror.url)
    page.get_by_role("button", name="failed 1").click()
    expect(page.locator("#tables tr")).to_have_count(1)
    page.get_by_role("button", name="live 4").click()
    expect(page.locator("#tables tr")).to_have_count(5)


def test_thousands_of_tables_are_shown_in_parts(open_page: Open) -> None:
    status = some_of_everything()
    many = tuple(table(f"public.t{number}") for number in range(3000))
    with served(replace(status, tables=(*many, *status.tables), alerts=())) as running:
        page = open_page(running.url)
        expect(page.locator("#tables tr")).to_have_count(200)
        expect(page.locator("#tables tr").first).to_contain_text("public.notes")
        page.get_by_role("button", name="Show more").click()
        expect(page.locator("#tables tr")).to_have_count(400)
        page.locator("#search").fill("t2999")
        expect(page.locator("#tables tr")).to_have_count(1)


def test_it_keeps_what_it_knows_when_the_pump_is_gone(open_page: Open) -> None:
    with served(some_of_everything()) as running:
        page = open_page(running.url, clock=True)
        expect(page.locator("#connection")).to_be_empty()
    page.clock.run_for(6_000)
    expect(page.locator("#connection")).to_contain_text("The pump does not answer, what follows is of")
    expect(page.locator("#tables")).to_contain_text("public.customers")


def test_it_says_why_nothing_is_known(open_page: Open) -> None:
    with served(None, problem="cannot connect to database shop") as running:
        page = open_page(running.url, wait_for="#connection p")
        expect(page.locator("#connection")).to_have_text("cannot connect to database shop")


def test_an_empty_mirror_says_what_comes_next(open_page: Open) -> None:
    with served(replace(some_of_everything(), tables=(), alerts=())) as running:
        page = open_page(running.url, wait_for="#tiles div")
        expect(page.locator("#tables-note")).to_contain_text("mirror-pump register")
        expect(page.locator("#copies-section")).to_be_hidden()
        expect(page.locator("#health")).to_have_text("no problems")
