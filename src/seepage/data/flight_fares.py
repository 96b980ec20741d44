"""Fares of Indian domestic flights, spring 2019 (the MachineHack training sheet); the task is the price."""

from __future__ import annotations

import csv
import gzip
from datetime import date
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from seepage.data.dataset import Column, Dataset
from seepage.data.folder import DataBroken, find_file
from seepage.data.tabular import Encoding, Table
from seepage.spec import Examples

__all__ = ["load_flight_airlines", "load_flight_fares"]

HEADER = (
    "Airline",
    "Date_of_Journey",
    "Source",
    "Destination",
    "Route",
    "Dep_Time",
    "Arrival_Time",
    "Duration",
    "Total_Stops",
    "Additional_Info",
    "Price",
)
FIRST_DAY = date(2019, 3, 1)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LARGE = 100
BOOKED = ("Airline", "Source", "Destination", "Additional_Info", "Weekday", "Day", "Departure")


def load_flight_fares(folder: Path) -> Dataset:
    """Standardised prices from airline, cities, day, times, duration and stops; the owner is the airline.

    The first four fifths are the training rows. Repeated rows are left out, because the same row in two places would
    be counted as a leak; so are rows with a missing cell. `Route` is left out: source, destination and the number of
    stops say almost all of it. Prices are standardised by the training rows; `target` has the numbers to undo it.
    """
    table, price = _read(folder)
    return _dataset("flight-fares", table, price)


def load_flight_airlines(folder: Path) -> Dataset:
    """Flight fares as the airlines with a hundred rows or more hold them: a stand-in for the data of driouich2023.

    Those are bookings of ten European airlines, which are not public, with origin, destination, dates, airline and the
    type of the journey, round trip or not, which is sensitive. The type that is known here is whether a flight is
    direct. What would tell it at once is left out: stops, duration and arrival.
    """
    table, price = _read(folder)
    airlines, counts = np.unique(table["Airline"], return_counts=True)
    large = np.isin(table["Airline"], airlines[counts >= LARGE])
    if not large.any():
        raise DataBroken(
            f"expected an airline with {LARGE} rows or more in {folder}, got none; put the whole sheet there"
        )
    journey = np.where(table["Stops"] == 0, "direct", "with stops")
    kept = {name: table[name][large] for name in BOOKED} | {"Journey": journey[large]}
    return _dataset("flight-airlines", kept, price[large], binary=("Journey",))


def _read(folder: Path) -> tuple[Table, NDArray[np.float64]]:
    path = find_file("flight-fares", folder, "flight_fares.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        header = tuple(next(reader, ()))
        if header != HEADER:
            raise DataBroken(f"expected the columns {list(HEADER)} in {path}, got {list(header)}")
        # A dictionary keeps the first of equal rows, in order.
        rows = [row for row in dict.fromkeys(tuple(row) for row in reader) if all(row)]
    cells = {name: [row[i] for row in rows] for i, name in enumerate(HEADER)}
    days = [_day(text) for text in cells["Date_of_Journey"]]
    table = {
        "Airline": np.array(cells["Airline"]),
        "Source": np.array(cells["Source"]),
        "Destination": np.array(cells["Destination"]),
        "Additional_Info": np.array([text.lower() for text in cells["Additional_Info"]]),
        "Weekday": np.array([WEEKDAYS[day.weekday()] for day in days]),
        "Day": np.array([float((day - FIRST_DAY).days) for day in days]),
        "Departure": np.array([_minute_of_day(text) for text in cells["Dep_Time"]]),
        "Arrival": np.array([_minute_of_day(text) for text in cells["Arrival_Time"]]),
        "Duration": np.array([_minutes(text) for text in cells["Duration"]]),
        "Stops": np.array([_stops(text) for text in cells["Total_Stops"]]),
    }
    return table, np.array([float(text) for text in cells["Price"]])


def _dataset(name: str, table: Table, price: NDArray[np.float64], binary: tuple[str, ...] = ()) -> Dataset:
    cut = round(0.8 * len(price))
    train, test = ({key: values[part] for key, values in table.items()} for part in (slice(cut), slice(cut, None)))
    encoding = Encoding.of(train, binary)
    target = Column("Price", 0, 1, "numeric", offset=float(price[:cut].mean()), scale=float(price[:cut].std()) or 1.0)
    y = torch.from_numpy((price - target.offset) / target.scale).float()[:, None]  # (rows, 1)
    _, owner = np.unique(table["Airline"], return_inverse=True)
    owners = torch.from_numpy(owner.astype(np.int64).reshape(len(price)))
    return Dataset(
        name,
        encoding.spec(classes=None),
        Examples(encoding.normalise(train), y[:cut]),
        Examples(encoding.normalise(test), y[cut:]),
        owners[:cut],
        (),
        "hackathon data, no terms stated",
        "https://machinehack.com (Predict the Flight Ticket Price)",
        owners[cut:],
        encoding.columns,
        target,
    )


def _day(text: str) -> date:
    day, month, year = (int(part) for part in text.split("/"))
    return date(year, month, day)


def _minute_of_day(text: str) -> float:
    """Minutes after midnight.

    Example:
        >>> _minute_of_day("01:10 22 Mar")
        70.0
    """
    hours, minutes = text.split()[0].split(":")
    return 60.0 * int(hours) + int(minutes)


def _minutes(text: str) -> float:
    """A duration in minutes.

    Example:
        >>> _minutes("2h 50m"), _minutes("19h"), _minutes("5m")
        (170.0, 1140.0, 5.0)
    """
    return float(sum(int(part[:-1]) * {"h": 60, "m": 1}[part[-1]] for part in text.split()))


def _stops(text: str) -> float:
    return 0.0 if text == "non-stop" else float(text.split()[0])
