"""The car: doors, engine, fuel, climate and tires."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .journeys import CLASS, distance, feasible, navigate, shop, tires_and_shop, zip_code
from .scene import Intent, Scene
from .speech import Wording

__all__ = ["CLASS", "CONTEXT", "INTENTS", "config"]

CONTEXT = (
    "[I'm about to hit the road|I have a long drive ahead|We are leaving soon|A road trip is coming up].",
    "[Safety comes first|I want everything to be safe|I'd hate to break down on the way|I don't want any surprises on the road].",
    "[The car has been parked for a week|My car made a strange noise|I just got back to my car|I rented this car yesterday].",
    "[The weather is lovely for a drive|It is getting dark outside|It is hot in here|It's freezing in here].",
)
DOORS = ["driver", "passenger", "rear_left", "rear_right"]


def config(rng: Random) -> dict[str, Any] | None:
    """A parked car in some state."""
    locked = rng.random() < 0.3
    return {
        "random_seed": rng.randrange(10_000, 999_999),
        "fuelLevel": float(rng.randrange(2, 45)) if rng.random() < 0.6 else round(rng.uniform(2, 45), 1),
        "batteryVoltage": round(rng.uniform(11.5, 13.5), 1),
        "engineState": "stopped",
        "doorStatus": {door: "locked" if locked or rng.random() < 0.2 else "unlocked" for door in DOORS},
        "acTemperature": float(rng.randrange(16, 29)),
        "fanSpeed": rng.randrange(2, 10) * 10,
        "acMode": rng.choice(("auto", "cool", "heat")),
        "humidityLevel": float(rng.randrange(30, 70)),
        "headLightStatus": rng.choice(("on", "off", "off")),
        "parkingBrakeStatus": rng.choice(("engaged", "released")),
        "parkingBrakeForce": 0.0,
        "slopeAngle": 0.0,
        "brakePedalStatus": "released",
        "brakePedalForce": 0.0,
        "distanceToNextVehicle": float(rng.randrange(20, 120)),
        "cruiseStatus": "inactive",
        "destination": "None",
        **{
            f"{place}TirePressure": float(rng.randrange(28, 37)) for place in ("frontLeft", "frontRight", "rearLeft", "rearRight")
        },
    }


def _start(scene: Scene, spoken_locked: bool) -> None:
    if not spoken_locked:
        scene.do("lockDoors", unlock=False, door=list(DOORS))
    scene.do("pressBrakePedal", pedalPosition=1.0)
    scene.do("startEngine", ignitionMode="START")
    scene.recent["started"] = True


def start(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.engine_state == "stopped")
    locked = backend.remainingUnlockedDoors == 0 and scene.chance(0.6)
    _start(scene, locked)
    if locked:
        return scene.to_do(
            "[start|fire up|ignite] the [engine|car|motor][: all the doors are locked already|; the doors are "
            "already locked|, the doors being locked already]"
        )
    return scene.to_do(
        "[start|fire up|ignite|turn on|get going|activate] the [engine|car|motor|vehicle][ for me| using the "
        "START mode| in START mode| now|]"
        "[, making sure that the doors are locked|, with all doors securely locked|]"
    )


def brake_and_start(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).engine_state == "stopped")
    scene.do("activateParkingBrake", mode="engage")
    _start(scene, False)
    return scene.to_do(
        "[start|fire up|turn on] the [engine|car] [with the parking brake engaged and the doors locked|after "
        "locking the doors and engaging the handbrake"
        "|, making sure that the handbrake is engaged and every door is locked]"
    )


def parking_brake(scene: Scene) -> Wording:
    engaged = scene.backend(CLASS).parkingBrakeStatus == "engaged"
    if engaged:
        scene.do("activateParkingBrake", mode="release")
        return scene.to_do("[release|disengage|let go of] the [parking brake|handbrake]")
    scene.do("activateParkingBrake", mode="engage")
    return scene.to_do("[engage|activate|set|pull] the [parking brake|handbrake]")


def lock_all(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.engine_state == "stopped" or backend.remainingUnlockedDoors)
    unlock = backend.remainingUnlockedDoors == 0
    scene.do("lockDoors", unlock=unlock, door=list(DOORS))
    verb = "[unlock|open up]" if unlock else "[lock|secure]"
    return scene.to_do(verb + " [all the doors|all doors|every door|the doors of the car|all four doors]")


def lock_some(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    unlock = scene.chance(0.5)
    wanted = "locked" if unlock else "unlocked"
    options = [door for door in DOORS if backend.doorStatus[door] == wanted]
    scene.need(options)
    doors = options[: scene.rng.randrange(1, min(2, len(options)) + 1)]
    scene.do("lockDoors", unlock=unlock, door=doors)
    spoken = " and ".join({"rear_left": "rear left", "rear_right": "rear right"}.get(door, door) for door in doors)
    return scene.to_do(
        "{verb} [only|just|] the {doors} door{s}",
        verb="unlock" if unlock else "lock",
        doors=spoken,
        s="s" if len(doors) > 1 else "",
    )


def fill(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    room = 50 - backend.fuelLevel
    scene.need(room > 3)
    amount = scene.rng.randrange(2, int(room) + 1) if scene.chance(0.75) else round(scene.rng.uniform(1, room - 1), 1)
    scene.do("fillFuelTank", fuelAmount=amount)
    return scene.to_do(
        "[[fill|top up|refuel] [the tank|my tank|the fuel tank|my car] with {amount} [gallons|more "
        "gallons|gallons of gasoline|gallons of fuel]"
        "|[add|put] {amount} gallons of [gas|gasoline|fuel] [to|into] [the tank|my tank]]",
        amount=amount,
    )


def fill_up(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.fuelLevel < 49)
    level = scene.do("displayCarStatus", option="fuel")["fuelLevel"]
    room = round(50 - level, 2)
    scene.need(level + room <= 50)
    scene.do("fillFuelTank", fuelAmount=room)
    return scene.to_do(
        "[[check|look up] the fuel level and fill [the tank|it] [completely|up to the top|to the brim|until it is full]"
        "|[fill|top up] [the tank|my fuel tank|my car] [completely|to the maximum|to its full capacity|all the way]]"
    )


def fill_liters(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    room = 50 - backend.fuelLevel
    scene.need(room > 4)
    liters = scene.rng.randrange(5, int(room * 3.7))
    gallons = scene.do("liter_to_gallon", liter=liters)["gallon"]
    scene.do("fillFuelTank", fuelAmount=round(gallons, 2))
    return scene.to_do(
        "[fill|refuel|top up] [the tank|my tank|the car] with {liters} [liters|liters of gasoline|litres of "
        "fuel][, rounding the gallons to two decimals|, with the gallon amount rounded to two decimal places|. "
        "Round the gallons to 2 decimal digits]",
        liters=liters,
    )


def convert(scene: Scene) -> Wording:
    scene.backend(CLASS)
    amount = scene.rng.randrange(2, 120)
    if scene.chance(0.5):
        scene.do("liter_to_gallon", liter=amount)
        return scene.to_do(
            "[convert {n} liters [of fuel|of gasoline|] to gallons|tell me how many gallons {n} liters are]", n=amount
        )
    scene.do("gallon_to_liter", gallon=amount)
    return scene.to_do("[convert {n} gallons [of fuel|of gasoline|] to liters|tell me how many liters {n} gallons are]", n=amount)


_STATUS = {
    "fuel": "[how much fuel I have|the fuel level|how much gas is left in the tank]",
    "battery": "[the battery voltage|the state of the battery|the battery status]",
    "doors": "[which doors are locked|the status of the doors|the state of all doors]",
    "climate": "[the climate settings|the AC temperature and the fan speed|the air conditioning status]",
    "headlights": "[whether the headlights are on|the status of the headlights]",
    "parkingBrake": "[the status of the parking brake|whether the handbrake is on]",
    "brakePedal": "[the status of the brake pedal|whether the brake pedal is pressed]",
    "engine": "[whether the engine is running|the state of the engine|the engine status]",
}


def show_status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    option = scene.rng.choices(list(_STATUS), (4, 2, 2, 3, 1, 1, 1, 2))[0]
    scene.do("displayCarStatus", option=option)
    return scene.to_do("[show|display|check|tell me|report] " + _STATUS[option])


def tires(scene: Scene) -> Wording:
    scene.backend(CLASS)
    result = scene.do("check_tire_pressure")
    scene.recent["numbers"] = [value for key, value in result.items() if key.endswith("TirePressure")]
    return scene.to_do(
        "[check|inspect|verify|measure|look at] [the tire pressure|the pressure of all tires|my tire "
        "pressure|the tires|the pressure of each tire]"
    )


def climate(scene: Scene) -> Wording:
    scene.backend(CLASS)
    fahrenheit = scene.chance(0.2)
    degrees = scene.rng.randrange(60, 82) if fahrenheit else scene.rng.randrange(16, 29)
    arguments: dict[str, Any] = {"temperature": degrees}
    ending = ""
    if fahrenheit:
        arguments["unit"] = "fahrenheit"
    if scene.chance(0.5):
        arguments["fanSpeed"] = scene.rng.randrange(1, 11) * 10
        ending += f", fan speed {arguments['fanSpeed']}"
    if scene.chance(0.5):
        arguments["mode"] = scene.pick(("auto", "cool", "heat", "defrost"))
        ending += f", {arguments['mode']} mode"
    scene.do("adjustClimateControl", **arguments)
    return scene.to_do(
        "[set|adjust|change|bring] the [temperature|climate control|air conditioning|AC] to {n} {unit}{ending}",
        n=degrees,
        unit="degrees Fahrenheit" if fahrenheit else scene.pick(("degrees Celsius", "degrees")),
        ending=ending,
    )


def headlights(scene: Scene) -> Wording:
    scene.backend(CLASS)
    mode = scene.pick(("on", "off", "auto"))
    scene.do("setHeadlights", mode=mode)
    if mode == "auto":
        return scene.to_do("[set|switch] the headlights to automatic[ mode|]")
    return scene.to_do("[turn|switch] {mode} the headlights", mode=mode)


def cruise(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).engine_state == "running")
    speed, gap = scene.rng.randrange(6, 24) * 5, scene.rng.randrange(2, 20) * 10
    scene.do("setCruiseControl", speed=speed, activate=True, distanceToNextVehicle=gap)
    return scene.to_do(
        "[set|activate|adjust] [the cruise control|cruise control] [to|at] {speed} mph and [keep|hold] [a "
        "distance of|] {gap} meters [to|from] the [next vehicle|car ahead]",
        speed=speed,
        gap=gap,
    )


def outside(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("get_outside_temperature_from_google")
    if scene.chance(0.5):
        return scene.to_ask(
            "[How warm is it outside|What is the temperature outside|What's the outside temperature][ right now|]?"
        )
    return scene.to_do("[check|tell me|get] the [outside temperature|temperature outside]")


def release_pedal(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).brakePedalStatus == "pressed")
    scene.do("releaseBrakePedal")
    return scene.to_do("[release|let go of] the brake pedal")


def log(scene: Scene) -> Wording:
    scene.backend(CLASS)
    text = words.sentence(scene.rng)
    scene.do("display_log", messages=[text])
    return scene.to_do("[show|display] [the log message|the message] {text} [in the log|on the display]", text=scene.said(text))


INTENTS: tuple[tuple[float, Intent], ...] = (
    (7, start),
    (2.5, brake_and_start),
    (1.5, parking_brake),
    (1.5, lock_all),
    (0.8, lock_some),
    (3.5, fill),
    (3, fill_up),
    (1.5, fill_liters),
    (1.5, convert),
    (3, show_status),
    (4, tires),
    (3.5, tires_and_shop),
    (1.5, shop),
    (4, distance),
    (0.7, zip_code),
    (2, feasible),
    (2.5, navigate),
    (1.2, climate),
    (1, headlights),
    (1.2, cruise),
    (0.8, outside),
    (0.3, release_pedal),
    (0.3, log),
)
