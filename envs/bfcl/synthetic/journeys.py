"""Journeys: how far, whether the fuel lasts, where the next tire shop is, and the navigation."""

from __future__ import annotations

from . import words
from .scene import Scene
from .speech import Wording

CLASS = "VehicleControlAPI"

_ROUTES = {
    ("Rivermist", "Stonebrook"): 750.0,
    ("Maplecrest", "Silverpine"): 320.0,
    ("Shadowridge", "Sunset Valley"): 450.0,
    ("Oakendale", "Willowbend"): 290.0,
    ("Crescent Hollow", "Autumnville"): 630.0,
    ("San Francisco", "Rivermist"): 980.0,
    ("Silverpine", "Oakendale"): 1053.0,
    ("San Francisco", "Silverpine"): 780.0,
    ("Stonebrook", "San Francisco"): 880.0,
}


def tires_and_shop(scene: Scene) -> Wording:
    scene.backend(CLASS)
    result = scene.do("check_tire_pressure")
    pressures = [value for key, value in result.items() if key.endswith("TirePressure")]
    scene.recent["numbers"] = pressures
    low = scene.chance(0.8)
    limit = int(min(pressures)) + scene.rng.randrange(1, 8) if low else int(min(pressures)) - scene.rng.randrange(0, 4)
    drive = scene.chance(0.4)
    if low:
        shop = scene.do("find_nearest_tire_shop")["shopLocation"]
        if drive:
            scene.do("set_navigation", destination=shop)
    then = "[take me to|navigate to|set the navigation to]" if drive else "[find|point me to|look up|tell me]"
    return scene.to_do(
        "[check|inspect] [the tire pressure|all the tires] and[,|] if [any|one|any of them] [is|falls|drops] "
        "[below|under] {limit}[ psi| PSI|], " + then + " the [nearest|closest] tire [shop|service|shop]",
        limit=limit,
    )


def shop(scene: Scene) -> Wording:
    scene.backend(CLASS)
    place = scene.do("find_nearest_tire_shop")["shopLocation"]
    if scene.chance(0.5):
        scene.do("set_navigation", destination=place)
        return scene.to_do(
            "[find the nearest tire shop and [navigate there|set the navigation to it|take me "
            "there]|[navigate|take me] to the nearest tire shop]"
        )
    return scene.to_do("[find|locate|look up|tell me] the [nearest|closest] tire [shop|service center|shop]")


def distance(scene: Scene) -> Wording:
    scene.backend(CLASS)
    start, end = scene.pick(list(_ROUTES))
    if scene.chance(0.5):
        start, end = end, start
    first = scene.do("get_zipcode_based_on_city", city=start)["zipcode"]
    second = scene.do("get_zipcode_based_on_city", city=end)["zipcode"]
    miles = scene.do("estimate_distance", cityA=first, cityB=second)["distance"]
    scene.recent["distance"] = scene.recent["number"] = miles
    if scene.chance(0.4):
        scene.do("estimate_drive_feasibility_by_mileage", distance=miles)
        return scene.to_do(
            "[tell me|estimate|work out] [how far it is|the distance] from {a} to {b} and [whether|if] [my fuel "
            "is enough|I can make it with my fuel|I can drive that far]",
            a=start,
            b=end,
        )
    if scene.chance(0.3):
        return scene.to_ask("[How far is it|What is the distance|How long is the way] from {a} to {b}?", a=start, b=end)
    return scene.to_do(
        "[tell me|estimate|work out|find out|calculate] [how far it is|the distance|the mileage] [from {a} "
        "to|between {a} and] {b}",
        a=start,
        b=end,
    )


def zip_code(scene: Scene) -> Wording:
    scene.backend(CLASS)
    city = scene.pick([city for pair in _ROUTES for city in pair])
    scene.do("get_zipcode_based_on_city", city=city)
    return scene.to_do("[find|look up|tell me|get] the [zip code|zipcode] of {city}", city=city)


def feasible(scene: Scene) -> Wording:
    scene.backend(CLASS)
    recent = scene.recent.get("distance")
    if recent is not None and scene.chance(0.7):
        scene.do("estimate_drive_feasibility_by_mileage", distance=recent)
        return scene.to_do(
            "[check|tell me|verify|find out] [whether|if] [my fuel suffices for that distance|I can make it "
            "there with my fuel|I have enough fuel for that]"
        )
    miles = scene.rng.randrange(20, 1200)
    scene.do("estimate_drive_feasibility_by_mileage", distance=miles)
    return scene.to_do(
        "[check|tell me|verify|find out] [whether|if] I can drive {miles} miles with [my fuel|the fuel I have]", miles=miles
    )


def navigate(scene: Scene) -> Wording:
    scene.backend(CLASS)
    place = words.address(scene.rng)
    scene.do("set_navigation", destination=place)
    return scene.to_do(
        "[set [the navigation|the GPS|my navigation] to|navigate to|guide me to|plot a course to|take me to] {place}",
        place=scene.quoted(place) if scene.chance(0.5) else place,
    )
