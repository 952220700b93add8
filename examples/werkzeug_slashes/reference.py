"""Ask for the same page without the slash: this works."""

from werkzeug.routing import Map, Rule

site = Map(
    [
        Rule("/", endpoint="home"),
        Rule("/about", endpoint="about", strict_slashes=False),
        Rule("/blog/<int:year>", endpoint="archive"),
    ]
)
endpoint, values = site.bind("example.org").match("/about")
print(endpoint, values)
