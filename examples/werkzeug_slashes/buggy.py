"""Ask for a page with a slash too many: the rule says that slashes do not matter, werkzeug 2.2.0 finds no page."""

from werkzeug.routing import Map, Rule

site = Map(
    [
        Rule("/", endpoint="home"),
        Rule("/about", endpoint="about", strict_slashes=False),
        Rule("/blog/<int:year>", endpoint="archive"),
    ]
)
endpoint, values = site.bind("example.org").match("/about/")
print(endpoint, values)
