import statistics

from complementary.reports import figures


def history(values):
    return [{"epoch": i + 1, "accuracy": v} for i, v in enumerate(values)]


def test_page_and_table_escape_text():
    cell = "<script>alert(1)</script>"
    assert "<script>" not in figures.table([cell], [[cell]])
    assert "<script>" not in figures.page(cell, []).split("</title>")[0].split("<title>")[1]


def test_curves_draw_each_seed_and_the_mean():
    figure = figures.curves({"icm": [history([0.1, 0.5]), history([0.3, 0.7])]}, {"accuracy": "accuracy"})
    lines = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[0.1, 0.5], [0.3, 0.7], [0.2, 0.6]]


def test_bars_have_the_height_of_the_mean_in_percent():
    values = {"mixup": [0.18, 0.20], "icm": [0.02, 0.04]}
    heights = [bar.get_height() for bar in figures.bars(values, "noise").axes[0].patches]
    assert heights == [100 * statistics.fmean(v) for v in values.values()]


def test_image_tag_embeds_a_png():
    figure, _ = figures.new_figure(2, 1)
    assert figures.png(figure).startswith(b"\x89PNG")
    markup = figures.image_tag(figure, 'a "quoted" name')
    assert 'src="data:image/png;base64,iVBOR' in markup
    assert "&quot;quoted&quot;" in markup
